"""Human-readable text about runs, tasks and crawlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.output import ago, clean, moment, number, took
from crawler_lifecycle.cli.subjects import Kind
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.status_words import status_word
from crawler_lifecycle.subjects import RUN as SUBJECT
from crawler_lifecycle.subjects import (
    TERMINAL,
    Cell,
    Document,
    deletion_words,
    pace,
    plain,
    robots_words,
)

RunId = Annotated[int, Parameter(help="the run's id")]
Crawler = Annotated[
    str, Parameter(help="name of a crawler in the catalogue (crawlctl crawler list)")
]

_GENERAL = asdict(Limits())
#: Field of a request -> its name in the output of ``describe``.
_MAPPINGS = {
    "args": "arguments",
    "settings": "settings",
    "resources": "resources",
    "retries": "retries",
}
_WORDS = {
    "requested_by": "asked by",
    "parent": "parent",
    "due_at": "due",
    "priority": "priority",
    "max_parallel_tasks": "at once",
}


def facts(
    run: Document, rows: Sequence[Document], wrong: Sequence[Document]
) -> list[tuple[str, Cell]]:
    """Return the lines of ``describe``, omitting empty ones."""
    started = run.get("started_at")
    ended = run.get("ended_at")
    facts: list[tuple[str, Cell]] = [
        (
            "run",
            f"{run.get('run_id')}, attempt {run.get('attempt')}, crawler "
            f"{clean(run.get('crawler'))}",
        ),
        ("status", f"{status_words(run)}, stage {run.get('stage')}"),
        ("ended by", clean(run.get("ended_by"))),
        ("cause", clean(run.get("cause"))),
        ("deleted", clean(deletion_words(run["deleted"])) if run.get("deleted") else ""),
        ("truth", truth_words(run)),
        ("waiting", clean(run.get("waiting"))),
        ("tasks", counts_of(run, rows)),
        *resumptions(run),
        ("counters", counters_as_of(run)),
        ("fields", field_words(run)),
        ("items", clean((run.get("fields") or {}).get("note"))),
        *stops(run),
        ("started", f"{ago(started)}, trigger {run.get('trigger')}" if started else ""),
        ("ended", f"{ago(ended)}, took {took(started, ended)}" if ended else ""),
        ("corrections", str(len(wrong)) if wrong else "none"),
    ]
    facts += [("export", export_words(export)) for export in run.get("exports") or ()]
    facts += [("robots.txt", clean(robots_words(row))) for row in run.get("robots") or ()]
    facts += asked(run.get("request") or {})
    facts.append(("workflow", clean(run.get("owner_workflow_id") or run.get("workflow_id"))))
    return [(name, value) for name, value in facts if value] + SUBJECT.known(run)


def status_words(run: Document) -> str:
    """Return the status with the outcome, and for a stopped run also the recorded status."""
    word = status_word(run)
    outcome = clean(run.get("outcome"))
    inside = f"{run['status']}, {outcome}" if word != run.get("status") else outcome
    return f"{word} ({inside})" if inside else word


def asked(request: Document) -> list[tuple[str, str]]:
    """Return lines that describe the request, omitting limits that have their default values."""
    lines = [(title, assignments(request.get(name))) for name, title in _MAPPINGS.items()]
    limits = request.get("limits")
    if isinstance(limits, dict):
        said = {
            name.removesuffix("_s"): value
            for name, value in limits.items()
            if value != _GENERAL.get(name, value)
        }
        known = {
            name: value for name, value in said.items() if isinstance(value, int | float | None)
        }
        shown = {name: "none" if value is None else f"{value:g}s" for name, value in known.items()}
        lines.append(("limits", assignments(shown)))
    lines.append(("tags", clean(" ".join(map(str, request.get("tags") or ())))))
    lines += [
        (title, clean(request.get(name))) for name, title in _WORDS.items() if request.get(name)
    ]
    return lines


def assignments(values: object) -> str:
    """Return ``name=value`` words, as in a command line of ``start``. Values with spaces are
    quoted.
    """
    if not isinstance(values, dict):
        return ""
    given = {clean(name): clean(value) for name, value in values.items() if value is not None}
    return " ".join(
        f"{name}={value if value and ' ' not in value else repr(value)}"
        for name, value in given.items()
    )


def truth_words(run: Document) -> str:
    """Describe the last and the next poll."""
    words = f"verified {ago(run['verified_at'])}" if run.get("verified_at") else "not verified yet"
    due = moment(run.get("next_poll_at"))
    if run.get("status") in TERMINAL or due is None:
        return words
    return f"{words}, next poll {'due ' if due <= output.now() else ''}{ago(run['next_poll_at'])}"


def run_line(run: Document) -> str:
    """Return one line about a run. After each change that ``watch`` has to show, the line is
    different.
    """
    words = (
        f"run {run.get('run_id')} {clean(run.get('crawler'))} {status_word(run)} {run.get('stage')}"
    )
    if int(run.get("attempt") or 1) > 1:
        words += f" attempt {run['attempt']}"
    if run.get("outcome"):
        words += f" {clean(run['outcome'])}"
    if run.get("status") not in TERMINAL:
        if waiting_clause(run):
            words += f", {waiting_clause(run)}"
        elif stop := run.get("stop"):
            words += f", {'force-stop' if stop.get('force') else 'stop'} asked for"
            words += f" by {clean(stop['requested_by'])}" if stop.get("requested_by") else ""
    return words + (f": {clean(run['cause'])}" if run.get("cause") else "")


def task_line(task: Document) -> str:
    """Return one line about a task. After each change to the status or reason, the line is
    different.
    """
    words = (
        f"task {task.get('task_id')} (index {task.get('task_index')}) {task.get('status')} "
        f"{why_of(task)}"
    )
    return words.rstrip()


def waiting_clause(run: Document) -> str:
    """Return what the run is waiting for, as a sentence; empty if the run is not waiting."""
    words = clean(run.get("waiting"))
    return words if not words or words.startswith("waiting") else f"waiting: {words}"


def why_of(task: Document) -> str:
    """Return outcome and cause of a task, or the reason why the task is not executing yet.

    The field ``reason`` is used only for a waiting task. After that, it contains the cluster's own
    reason, such as ``Error`` for an orderly exit 11, which would look like a failure.
    """
    waits = task.get("reason") if task.get("status") in ("QUEUED", "PENDING") else None
    found = [clean(task.get("outcome")), clean(task.get("cause") or waits)]
    return ": ".join(word for word in found if word)


def counts_of(run: Document, rows: Sequence[Document]) -> str:
    known = run.get("tasks")
    counts = Counter(known if isinstance(known, dict) else [str(row.get("status")) for row in rows])
    return (
        ", ".join(f"{status} {count}" for status, count in sorted(counts.items()) if count)
        or "none yet"
    )


def resumptions(run: Document) -> list[tuple[str, str]]:
    """Return lines about a resumed run: how many tasks continued from saved state, and why other
    tasks could not.
    """
    found = [(said.get("tasks"), clean(said.get("note"))) for said in run.get("resumption") or ()]
    return [
        ("resumed", f"{number(tasks)} {'task' if tasks == 1 else 'tasks'}: {note}")
        for tasks, note in found
    ]


def counters(run: Document) -> str:
    """Return a phrase with the numbers of pages, items and errors so far."""
    named = [
        f"{number(run[name])} {name}"
        for name in ("pages", "items", "errors")
        if run.get(name) is not None
    ]
    if (speed := pace(run)) is not None:
        named.insert(1, f"{speed} pages per minute")
    return ", ".join(named)


def field_words(run: Document) -> str:
    """Return a phrase with each field and the share of items that have it, highest share first."""
    shares = (run.get("fields") or {}).get("shares") or {}
    return ", ".join(
        f"{clean(name)} {share:.1%}"
        for name, share in sorted(shares.items(), key=lambda one: -one[1])
    )


def counters_as_of(run: Document) -> str:
    """Return the counters of a run and, while it is live, the time of their last change."""
    words = counters(run)
    if words and run.get("status") not in TERMINAL and run.get("last_progress_at"):
        words += f" (changed {ago(run['last_progress_at'])})"
    return words


def stop_words(stop: Document) -> str:
    words = [
        "force-stop" if stop.get("force") else "stop",
        "asked for",
        ago(stop.get("requested_at")),
    ]
    if stop.get("limit"):
        words = ["by the run's limit", clean(stop["limit"]) + ",", ago(stop.get("requested_at"))]
    if stop.get("requested_by"):
        words += ["by", clean(stop["requested_by"])]
    return " ".join(words) + (f": {clean(stop['reason'])}" if stop.get("reason") else "")


def stops(run: Document) -> list[tuple[str, str]]:
    """Return a line for each stop: requests from people, including requests to stop earlier
    attempts, or the stop that one of the run's limits caused.

    The run's own stop field merges all requests, so the recorded requests are shown if there are
    any.
    """
    stop = run.get("stop") or {}
    logged = run.get("cancellations") or ()
    found = []
    for entry in logged:
        earlier = (
            ""
            if entry.get("attempt") == run.get("attempt")
            else f"attempt {entry.get('attempt')}: "
        )
        acted = (
            f"; acted on {ago(entry['acted_at'])}"
            if entry.get("acted_at")
            else "; not acted on yet"
        )
        found.append(("stop", f"{earlier}{stop_words(entry)}{acted}"))
    if stop and (stop.get("limit") or not logged):
        found.append(("stop", stop_words(stop)))
    return found


def export_words(export: Document) -> str:
    words = clean(export.get("status"))
    files = export.get("files")
    if not export.get("url"):
        return words + (f", {clean(export['error'])}" if export.get("error") else "")
    size = "" if files is None else f", {number(files)} files, {number(export.get('bytes'))} bytes"
    return f"{words} {clean(export['url'])}{size}"


def next_steps(run: Document, rows: Sequence[Document] = ()) -> list[str]:
    """Return commands that are useful next for this run."""
    run_id = run.get("run_id")
    status = run.get("status")
    if run.get("deleted"):
        return [f"crawlctl timeline {run_id}"]
    if status in TERMINAL:
        # A main task that never executed has no log.
        main = min(rows, key=lambda row: int(row.get("task_index") or 0), default={})
        verb = "logs" if main.get("started_at") else "timeline"
        place = " --at-error" if verb == "logs" and main.get("error") else ""
        again = " --rerun" if status == "COMPLETED" else ""
        # A new run with the same configuration would fail in the same way.
        first = "correct the cause, then " if run.get("outcome") == "deploy_failed" else ""
        return [f"crawlctl {verb} {run_id}{place}", f"{first}crawlctl resume {run_id}{again}"]
    if status == "STOPPING":
        return [f"crawlctl wait {run_id} --for ended", f"crawlctl force-stop {run_id}"]
    return [f"crawlctl wait {run_id}", f"crawlctl poll {run_id}", f"crawlctl stop {run_id}"]


def exit_of(task: Document) -> str | None:
    """Return the exit code of a task, or its signal."""
    return f"signal {task['exit_signal']}" if task.get("exit_signal") else task.get("exit_code")


def arguments(crawler: Document) -> str:
    """Return the names of the crawler's arguments. Required arguments are marked with an
    exclamation mark.
    """
    needed = required(crawler)
    return ", ".join(f"{name}!" if name in needed else name for name in crawler.get("args") or {})


def required(crawler: Document) -> list[str]:
    """Return the names of the arguments without which the crawler cannot be started."""
    given = {
        name: spec if isinstance(spec, dict) else {}
        for name, spec in (crawler.get("args") or {}).items()
    }
    return [
        name for name, spec in given.items() if spec.get("required") and spec.get("default") is None
    ]


def argument_lines(crawler: Document) -> list[tuple[str, str]]:
    """Return a line for each argument of the crawler, with type, choices, default and
    description.
    """
    lines = []
    for name, spec in (crawler.get("args") or {}).items():
        said = spec if isinstance(spec, dict) else {}
        words = [clean(said.get("type") or "string")]
        if said.get("choices"):
            words.append(f"one of {plain(said['choices'])}")
        if said.get("default") is not None:
            words.append(f"default {clean(said['default'])}")
        elif said.get("required"):
            words.append("required")
        about = f": {clean(said['description'])}" if said.get("description") else ""
        lines.append(("argument", f"{clean(name)}: {', '.join(words)}{about}"))
    return lines


def _state_line(run: Document) -> str:
    words = waiting_clause(run)
    # The run may already have ended; only the next poll will show this.
    at = run.get("next_poll_at")
    then = f", {words}" if words else f", polled next at {str(at)[11:19]} UTC" if at else ""
    return f"run {run.get('run_id')} {status_word(run)}, {run.get('stage')}{then}"


RUN = Kind(SUBJECT, _state_line)

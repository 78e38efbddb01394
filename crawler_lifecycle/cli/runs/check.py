"""``crawlctl crawler check``: starts, stops and resumes a crawler, and reports which parts of the
contract it meets.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from crawler_lifecycle.cli.client.polling import Polling
from crawler_lifecycle.cli.inputs import Arguments, Settings, filled, pairs
from crawler_lifecycle.cli.output import clean, emit, moment, number, show_finding, took
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import By, Project
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.runner.contract import NOT_KEPT
from crawler_lifecycle.subjects import TERMINAL, Document, was_stopped

from .texts import RUN, Crawler, required

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway

T = TypeVar("T")
Counts = dict[str, int]

TAG = "check"
WHY = "crawlctl crawler check"
_STYLES = {"ok": "green", "FAILED": "red bold", "skipped": "yellow"}
#: The number of different counter values that prove growth. Once there are more values than this,
#: we stop waiting for ``resumed``: polls come as often as new values, so they would have found it.
_GROWTHS = 3
_PATIENCE = 8
_QUICK: dict[str, Any] = {"tags": [TAG], "poll_minutes": [0.05]}
#: Seconds for the archive; seconds after the grace period in which a stopped run must end; and
#: seconds after ``--limit-s`` after which the service itself stops a run, in case this program has
#: died.
_EXPORT_S = 60.0
_STOP_S = 60.0
_ABANDONED_S = 300.0


class Line(NamedTuple):
    """One part of the contract, with the result of the check, an explanation, and the fix."""

    check: str
    result: Literal["ok", "FAILED", "skipped"]
    text: str
    fix: str | None = None


def _bad(check: str, text: str, fix: str, section: str) -> Line:
    return Line(check, "FAILED", text, f"{fix} (docs/contract.md#{section})")


class CheckedRun(NamedTuple):
    """A run, and the row of its task in one attempt. The row is empty before the task exists."""

    run: Document
    task: Document

    @property
    def ended(self) -> bool:
        return self.run.get("status") in TERMINAL

    @property
    def stopped(self) -> bool:
        """True if our stop request ended the run, even if the crawler had to be killed."""
        return was_stopped(self.run)

    @property
    def counts(self) -> Counts:
        return {
            name: self.task[name] for name in ("pages", "items") if self.task.get(name) is not None
        }

    @property
    def cause(self) -> str:
        return clean(
            self.task.get("cause")
            or self.run.get("cause")
            or self.run.get("waiting")
            or "no reason is known"
        )


def check(
    crawler: Crawler,
    /,
    *,
    arg: Arguments = None,
    setting: Settings = None,
    limit_s: float = 120,
    project: Project = None,
    by: By = None,
) -> int:
    """Check that a crawler meets the contract (docs/contract.md), with runs that have the tag
    check.

    It starts the crawler, waits until its counters grow, stops it, resumes it, and starts it once
    more and lets it end on its own. Each line shows ok, FAILED or skipped, and the fix. The exit
    code is 1 if a check failed. Runs that are still executing at the end are stopped, even after
    Ctrl-C.

    Parameters
    ----------
    limit_s
        time limit in seconds for each step, and for a whole crawl
    """
    if not 1 <= limit_s <= 86400:
        raise WrongUsage(f"--limit-s {limit_s:g} is not allowed", "give 1 to 86400 seconds")
    args = pairs(arg, "-a")
    request = {
        "crawler": crawler,
        "args": args,
        "settings": pairs(setting, "-s"),
        "requested_by": by or user(),
        **filled({"project": project or None}),
    }
    with current().gateway() as gateway:
        entry = gateway.crawler(crawler)
        if missing := [clean(name) for name in required(entry) if name not in args]:
            what = f"crawler {crawler} requires the arguments {', '.join(missing)}"
            raise WrongUsage(what, f"add {' '.join(f'-a {name}=…' for name in missing)}")
        trial = Trial(gateway, entry, request, limit_s)
        lines = list[Line]()
        try:
            for line in trial.lines():
                lines.append(line)
                if current().for_people:
                    show_finding(
                        line.result.ljust(9), _STYLES[line.result], line.check, line.text, line.fix
                    )
        finally:
            trial.leave_nothing()
    counts = {result: sum(line.result == result for line in lines) for result in _STYLES}
    rows = [line._asdict() for line in lines]
    failed = [line.check for line in lines if line.result == "FAILED"]
    document = {"crawler": crawler, "runs": trial.runs, "summary": counts, "checks": rows}
    emit(document, names=failed, table=lambda: None, rows=rows)
    say(", ".join(f"{count} {result}" for result, count in counts.items()))
    return Exit.ERROR if failed else Exit.DONE


class Trial:
    """The runs of one check.

    The methods continue after a restart of the gateway, and raise ``CommandFailed``.
    """

    def __init__(
        self, gateway: Gateway, entry: Document, request: dict[str, Any], limit_s: float
    ) -> None:
        self._longest_s = min(
            limit_s + _ABANDONED_S, entry["limits"].get("run_timeout_s") or math.inf
        )
        self._grace_s = entry["limits"].get("stop_grace_s") or 30.0
        self._gateway = gateway
        self._entry = entry
        self._limit_s = limit_s
        self._by = request["requested_by"]
        self._request = (
            request | _QUICK | {"limits": {"start_check_s": 1, "run_timeout_s": self._longest_s}}
        )
        self.runs: list[int] = []
        self._live: set[str] = set()
        """The request ids of runs that may be executing. With these ids, we find even a run whose
        start request got no response.
        """

    def lines(self) -> Iterator[Line]:
        """Carry out the check, and yield each line as soon as its result is available."""
        run = self._start()
        counts = list[Counts]()
        seen = self._follow(run, lambda seen: bool(seen.task.get("started_at")))
        if not seen.task.get("started_at"):
            fix = (
                "correct its entry in the catalogue; if it waits for a slot, free one, or "
                "raise --limit-s"
            )
            yield _bad("executes", f"no task of run {run} executed: {seen.cause}", fix, "start")
            return
        yield Line(
            "executes",
            "ok",
            f"after {took(seen.run.get('created_at'), seen.task['started_at'])}, as run {run}",
        )
        seen = self._follow(run, lambda seen: _readings(counts, seen) >= _GROWTHS)
        seen = seen if seen.ended else self._stop(run)
        yield _counters(counts, seen)
        yield self._stop_line(seen)
        yield self._last_words(seen)
        yield from self._resuming(seen)
        if seen.stopped:
            run = self._start()
            seen = self._follow(run, lambda seen: False)
        if seen.ended or run != self.runs[0]:
            yield from self._ending(run, seen)

    def leave_nothing(self) -> None:
        """Ask the runs of this check that have not ended to stop."""
        try:
            found = (
                self._gateway.runs(limit=50, crawler=self._request["crawler"], tag=[TAG])
                if self._live
                else []
            )
            for run in [row["run_id"] for row in found if row["request_id"] in self._live]:
                self._gateway.stop(run, reason=WHY, requested_by=self._by)
                say(f"run {run} was asked to stop; next: crawlctl wait {run} --for ended")
        except CommandFailed as failure:
            what = f"runs may still be executing, for at most {self._longest_s:g} s: {failure.what}"
            say(f"{what}; next: crawlctl list --tag {TAG}")

    # --- steps

    def _ask(self, call: Callable[[], T]) -> T:
        return next(Polling().answers(call, answered=True))

    def _start(self) -> int:
        request_id = str(uuid.uuid4())
        self._live.add(request_id)
        answer = self._ask(lambda: self._gateway.start(self._request, request_id))
        run = int(answer["run_id"])
        self.runs.append(run)
        say(f"run {run} is started")
        return run

    def _poll(self, run: int, attempt: int) -> CheckedRun:
        # read the run before the task, so that the task is at least as new as the run
        found = self._gateway.poll(RUN.path(run))
        rows = [row for row in self._gateway.tasks(run) if row.get("run_attempt") == attempt]
        if found.get("status") in TERMINAL:
            self._live.discard(str(found.get("request_id")))
        return CheckedRun(found, rows[-1] if rows else {})

    def _follow(
        self, run: int, done: Callable[[CheckedRun], bool], limit_s: float = 0.0, attempt: int = 1
    ) -> CheckedRun:
        """Poll a run until ``done``, its end, or the limit, and return the last response."""
        polling = Polling(timeout_s=limit_s or self._limit_s, longest_s=1.0)
        for seen in polling.answers(lambda: self._poll(run, attempt), answered=True):
            if done(seen) or seen.ended:
                return seen
        return self._ask(lambda: self._poll(run, attempt))

    def _stop(self, run: int, attempt: int = 1) -> CheckedRun:
        self._ask(
            lambda: self._gateway.stop(
                run, reason=WHY, requested_by=self._by, request_id=str(uuid.uuid4())
            )
        )
        return self._follow(run, lambda seen: False, self._grace_s + _STOP_S, attempt)

    # --- lines

    def _stop_line(self, seen: CheckedRun) -> Line:
        times = (seen.run.get("stop") or {}).get("requested_at"), seen.task.get("ended_at")
        (asked, ended) = map(moment, times)
        after = took(*times)
        if seen.ended and not seen.stopped:
            fix = (
                "let it crawl for about 20 s with its arguments or settings; after a stop it must "
                "not report finished"
            )
            if asked and ended and ended > asked:
                return _bad("stop", f"{seen.cause}, {after} after the stop", fix, "stop")
            return Line(
                "stop", "skipped", f"it ended before a stop could end it: {seen.cause}", fix
            )
        code = seen.task.get("exit_code")
        if (
            seen.run.get("outcome") == "cancelled"
            and not seen.task.get("exit_signal")
            and code in (0, 11)
        ):
            return Line("stop", "ok", f"cancelled with exit {code}, {after} after the stop")
        text = seen.cause if seen.ended else f"it is still executing {after} after the stop"
        fix = (
            f"on {self._entry['stop_signal']} save what is needed, and end with exit 0 or 11 in "
            f"{self._grace_s:g} s"
        )
        return _bad("stop", text, fix, "stop")

    def _last_words(self, seen: CheckedRun) -> Line:
        if not seen.stopped:
            return Line("finish reason", "skipped", "it was not stopped")
        log = ""
        with suppress(CommandFailed):  # the log may not exist
            log = self._ask(
                lambda: self._gateway.logs(seen.run["run_id"], seen.task.get("task_id"), tail=50)
            )
        # The crawler may have printed the beginning of the line.
        _, mark, said = log.rpartition('{"crawl_progress": {')
        if mark and (told := re.search(r'"finish_reason": "((?:[^"\\]|\\.)+)"', said)):
            return Line("finish reason", "ok", f"finish reason {clean(told[1])}")
        fix = (
            "end with exit 0 or 11 after the stop signal, or write finish_reason "
            "into CRAWL_STATS_FILE"
        )
        return _bad("finish reason", "its log shows no finish reason", fix, "end")

    def _resuming(self, before: CheckedRun) -> Iterator[Line]:
        if not before.stopped or not self._entry.get("resumable"):
            why = (
                "its catalogue entry does not contain resumable: true"
                if before.stopped
                else "it was not stopped"
            )
            yield from (Line(name, "skipped", why) for name in ("resume", "continues"))
            return
        run = int(before.run["run_id"])
        counts = list[Counts]()
        self._live.add(str(before.run["request_id"]))
        attempt = int(
            self._ask(lambda: self._gateway.resume(run, requested_by=self._by))["attempt"]
        )

        def done(seen: CheckedRun) -> bool:
            return _readings(counts, seen) >= (_PATIENCE if seen.task.get("resumed") is None else 1)

        seen = self._follow(run, done, attempt=attempt)
        note = clean(seen.task.get("resume_note"))
        failed = seen.run.get("status") == "FAILED"
        # While the task is executing, the counters may still be those of the previous try.
        told = (seen if seen.ended else self._stop(run, attempt)).counts
        if seen.task.get("resumed") is True and not failed:
            yield Line("resume", "ok", note)
        else:
            fix = (
                'with CRAWL_RESUME=1 continue from CRAWL_STATE_DIR, and write "resumed": true into '
                "CRAWL_STATS_FILE"
            )
            yield _bad("resume", (not failed and note) or seen.cause, fix, "state")
        if lower := _lower(told, before.counts) or (
            "none is reported" if before.counts and not told else ""
        ):
            fix = "keep the counters in CRAWL_STATE_DIR, and continue from them"
            yield _bad("continues", f"counters after the resume: {lower}", fix, "state")
        else:
            yield Line(
                "continues",
                "ok" if told else "skipped",
                f"from {_words(before.counts)} to {_words(told)}",
            )

    def _ending(self, run: int, seen: CheckedRun) -> Iterator[Line]:
        if not seen.ended:
            seen = self._stop(run)
            yield Line(
                "end",
                "skipped",
                f"it did not end in {self._limit_s:g} s",
                "give the crawler less work, or raise --limit-s",
            )
        elif seen.run.get("status") == "COMPLETED":
            yield Line(
                "end", "ok", f"{clean(seen.run.get('outcome'))}, exit {seen.task.get('exit_code')}"
            )
        else:
            fix = (
                "end with exit 0 when everything is done, else with another code and the reason "
                "on standard error"
            )
            yield _bad("end", f"{clean(seen.run.get('outcome'))}: {seen.cause}", fix, "end")
        yield self._items(run, seen)
        yield self._files(run)

    def _items(self, run: int, seen: CheckedRun) -> Line:
        if self._entry.get("items") is False:
            return Line("items", "skipped", "its catalogue entry contains items: off")
        stats = self._ask(lambda: self._gateway.get(RUN.path(run, "/items/stats")))
        items = int(stats["items"])
        notes = [clean(note) for note in stats["notes"]]
        text = ": ".join(filter(None, (f"{number(items)} can be read", "; ".join(notes))))
        fix = "write items.jsonl in CRAWL_FILES_DIR, one JSON object per line"
        # Another crawler in the same folder may have left files there that are not kept. Their
        # content does not count as this crawler's items.
        wrong = (
            any(not note.endswith(NOT_KEPT) for note in notes) if items else seen.task.get("items")
        )
        if wrong:
            return _bad(
                "items", f"{text} ({number(seen.task.get('items'))} were reported)", fix, "items"
            )
        return (
            Line("items", "ok", text)
            if items
            else Line("items", "skipped", text, f"{fix}, if it has any")
        )

    def _files(self, run: int) -> Line:
        export: Document = {}
        for found in Polling(timeout_s=_EXPORT_S).answers(
            lambda: self._gateway.run(run), answered=True
        ):
            export = next(
                (export for export in found["exports"] if export["attempt"] == found["attempt"]), {}
            )
            if export.get("status") in ("exported", "empty"):
                break
        if export.get("status") == "exported":
            return Line(
                "files",
                "ok",
                f"{number(export['files'])} in the archive, {number(export['bytes'])} bytes",
            )
        text = clean(export.get("error") or export.get("status")) or "no archive yet"
        return _bad(
            "files",
            text,
            "do not move CRAWL_FILES_DIR; crawlctl doctor checks the archive",
            "files",
        )


def _readings(counts: list[Counts], seen: CheckedRun) -> int:
    """Add the counters to the set of different values above zero, and return the number of values
    in the set.
    """
    if any(seen.counts.values()) and seen.counts not in counts:
        counts.append(seen.counts)
    return len(counts)


def _counters(counts: list[Counts], seen: CheckedRun) -> Line:
    fix = "write pages and items to CRAWL_STATS_FILE about once per second; never decrease them"
    first, last = (counts[0], counts[-1]) if counts else ({}, {})
    if lower := _lower(seen.counts, last):
        return _bad("counters", f"they decreased: {lower}", fix, "counters")
    if not first or (first == last and (seen.stopped or not seen.ended)):
        return _bad("counters", f"they stayed at {_words(first)}", fix, "counters")
    return Line("counters", "ok", f"from {_words(first)} to {_words(seen.counts or last)}")


def _lower(now: Counts, before: Counts) -> str:
    """Return the names of the counters that are lower than before, and their values."""
    lower = [name for name in before if now.get(name, before[name]) < before[name]]
    return ", ".join(f"{now[name]:,} {name}, before {before[name]:,}" for name in lower)


def _words(counts: Counts) -> str:
    return (
        ", ".join(f"{value:,} {name}" for name, value in counts.items()) or "no pages and no items"
    )

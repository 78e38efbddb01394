"""``crawlctl start``: starts a run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.inputs import Arguments, Settings, content_of, filled, pairs
from crawler_lifecycle.cli.output import as_json, emit, say_note, show_facts
from crawler_lifecycle.cli.problems import Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import By, End, Project
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.bounds import LIMITS
from crawler_lifecycle.domain.crawlers.arguments import Scalar
from crawler_lifecycle.domain.status_words import status_word
from crawler_lifecycle.subjects import TERMINAL, Cell

from .texts import RUN, Crawler

Seconds = float | Literal["none"] | None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options for ``start``: limits of the run in seconds (``none`` means no limit), and resources
    for each task.

    Parameters
    ----------
    run_timeout
        stop the run after this many seconds; none: never
    stall_timeout
        stop after this many seconds without progress; none: never
    start_timeout
        fail the run if it does not start in this many seconds
    start_check
        seconds until the first check whether the run has started
    stop_grace
        seconds from the stop signal until tasks that have not ended are killed
    force_stop_after
        force a stop that takes more than this many seconds
    cpu
        CPUs of each task, such as 500m or 2
    memory
        memory of each task, such as 512Mi
    """

    run_timeout: Seconds = None
    stall_timeout: Seconds = None
    start_timeout: Seconds = None
    start_check: float | None = None
    stop_grace: float | None = None
    force_stop_after: Seconds = None

    cpu: str | None = None
    memory: str | None = None

    def given(self) -> dict[str, dict[str, Any]]:
        """Return the limits and resources that were given as fields of a request."""
        named = filled(asdict(self))
        resources: dict[str, Any] = {
            name: named.pop(name) for name in ("cpu", "memory") if name in named
        }
        limits = {f"{name}_s": None if value == "none" else value for name, value in named.items()}
        return {"limits": limits, "resources": resources}


_NO_OPTIONS = RunOptions()


def start(
    crawler: Crawler,
    /,
    *,
    arg: Arguments = None,
    setting: Settings = None,
    tasks: int | None = None,
    task_file: Path | None = None,
    max_parallel: int | None = None,
    trigger: Literal["manual", "api", "scheduled"] = "manual",
    due_at: str | None = None,
    flow: str | None = None,
    parent: str | None = None,
    request_id: str | None = None,
    tag: list[str] | None = None,
    site: list[str] | None = None,
    version: str | None = None,
    priority: int | None = None,
    pool: str | None = None,
    retries: int | None = None,
    poll_minutes: str | None = None,
    options: Annotated[RunOptions, Parameter(name="*")] = _NO_OPTIONS,
    project: Project = None,
    by: By = None,
    wait: End = False,
    watch: bool = False,
    dry_run: bool = False,
) -> int:
    """Start a run of a crawler.

    Parameters
    ----------
    tasks
        number of tasks; each task gets its index
    task_file
        file with a JSON object of arguments for each task
    max_parallel
        at most this many tasks at once
    trigger
        the trigger to record for the run
    due_at
        due time of a scheduled run, such as 2026-03-01T12:00:00Z
    flow
        the flow to which the run belongs (crawlctl list --flow)
    parent
        id of the workflow to notify when the run ends
    request_id
        the same id never starts a second run
    tag
        tag of the run
    site
        host that the run visits; default: the crawler's sites
    version
        version of the crawler's package; default: the current one
    priority
        1 (first) to 5 (last)
    pool
        pool of the run (crawlctl pools); default: the crawler's pool
    retries
        further tries of each task after the first one (docs/resuming.md#automatic-retries)
    poll_minutes
        minutes between polls, such as 1,2,3; the last number repeats
    watch
        wait, and show a live view
    dry_run
        only show the request
    """
    request: dict[str, Any] = {"crawler": crawler, "trigger": trigger, "requested_by": by or user()}
    request_id = request_id or str(uuid.uuid4())
    children = _children(tasks, task_file)
    optional = {
        "args": pairs(arg, "-a"),
        "settings": pairs(setting, "-s"),
        "tasks": children,
        "max_parallel_tasks": max_parallel,
        "tags": tag,
        "sites": site,
        "version": version,
        "priority": priority,
        "pool": pool,
        "retries": None if retries is None else {"max": retries},
        "poll_minutes": _minutes(poll_minutes),
        "due_at": due_at,
        "flow_id": flow,
        "parent": parent,
        "project": project,
        **options.given(),
    }
    request |= filled(optional)
    _check_numbers(request)
    if dry_run:
        emit(request, names=[request_id], table=lambda: print(as_json(request)))
        return Exit.DONE
    with current().gateway() as gateway:
        started = gateway.start(request, request_id)
        run_id = int(started["run_id"])
        say_note(started, f"run {run_id}")
        if watch:
            from .watch import watch_run

            return watch_run(gateway, run_id)
    if wait:
        return RUN.follow(run_id, watch=False)
    facts: list[tuple[str, Cell]] = [
        *((name, started[name]) for name in ("run_id", "workflow_id") if started.get(name)),
        ("status", status_word(started)),
    ]
    emit(started, names=[run_id], table=lambda: show_facts(facts))
    then = f"crawlctl wait {run_id} · crawlctl describe {run_id} · crawlctl stop {run_id}"
    say(f"next: {f'crawlctl describe {run_id}' if started.get('status') in TERMINAL else then}")
    return Exit.DONE


def _check_numbers(request: Mapping[str, Any]) -> None:
    """Check numbers according to the gateway's rules, because JSON cannot contain ``nan``.

    Raises ``CommandFailed``.
    """
    given = {
        "poll_minutes": request.get("poll_minutes"),
        "priority": request.get("priority"),
        "max_parallel_tasks": request.get("max_parallel_tasks"),
    }
    given |= {f"limits.{name}": value for name, value in request.get("limits", {}).items()}
    for name, value in given.items():
        for entry in value if isinstance(value, list) else [value]:
            if entry is not None and not LIMITS[name].holds(entry):
                raise WrongUsage(f"{name}: {entry} is not allowed", LIMITS[name].fix_text())


def _children(count: int | None, file: Path | None) -> list[dict[str, Any]] | None:
    if count is not None and file is not None:
        raise WrongUsage("--tasks and --task-file cannot be combined", "give one of them")
    if file is not None:
        return read_tasks(file, "--task-file")
    if count is None:
        return None
    if count < 1:
        raise WrongUsage(f"--tasks {count} is not allowed", "give 1 or more, or leave it out")
    return [{"args": {}} for _ in range(count)]


_EXAMPLE = 'give one JSON object in each line, such as {"letters": "a-f"}'


def read_tasks(file: Path, option: str) -> list[dict[str, Any]]:
    """Return the tasks from a file with one JSON object of arguments in each line.

    Raises ``CommandFailed``.

    ``-`` is standard input.
    """
    try:
        text = content_of(file, option).decode()
    except UnicodeDecodeError as error:
        raise WrongUsage(f"{option} {file} cannot be read", why=str(error)) from None
    found = []
    # ``splitlines`` would also split at characters that JSON strings may contain.
    for n, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            args = json.loads(line)
        except ValueError as error:
            raise WrongUsage(f"{file}:{n} is not valid JSON", _EXAMPLE, why=str(error)) from None
        if not isinstance(args, dict) or not all(
            isinstance(value, Scalar) for value in args.values()
        ):
            raise WrongUsage(f"{file}:{n} is not an object of strings and numbers", _EXAMPLE)
        found.append({"args": args})
    if not found:
        raise WrongUsage(f"{option} {file} has no tasks", _EXAMPLE)
    return found


def _minutes(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise WrongUsage(
            f"--poll-minutes {text!r} is not allowed",
            "give minutes separated by commas, such as 1,2,3 or 0.05",
        ) from None

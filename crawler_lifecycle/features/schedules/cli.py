"""``crawlctl schedule``: verbs that create, change, show and control schedules."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.inputs import (
    Arguments,
    Settings,
    content_of,
    filled,
    json_of,
    pairs,
)
from crawler_lifecycle.cli.output import emit_list, now, say_note, show_list
from crawler_lifecycle.cli.problems import WrongUsage
from crawler_lifecycle.cli.session import current, time_of
from crawler_lifecycle.cli.subjects import By, Limit, NamedKind, Project, Shown
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.subjects import DUE, SCHEDULE, Document

KIND = NamedKind(SCHEDULE)
Name = Annotated[str, Parameter(help="the schedule's name")]
Decision = Literal["started", "queued", "skipped_overlap", "paused", "missed", "failed"]


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """Options for the due times of a schedule, and for overlaps and late starts.

    Parameters
    ----------
    cron
        minute hour day month weekday, in --time-zone
    every
        seconds between due times
    offset
        seconds to add to each of these times
    time_zone
        zone of the IANA database; default: UTC
    jitter
        random delay, up to this many seconds
    start_at
        no due times before this time, such as 2026-12-01T00:00Z
    end_at
        no due times after this time
    exclude
        a date without due times; may be repeated
    overlap
        what to do while the previous target has not ended; default: skip
    catch_up
        seconds a start may be late; default: 600
    pause_after_failures
        pause after this many failures in a row
    """

    cron: str | None = None
    every: Annotated[int | None, Parameter(name="--every-s")] = None
    offset: Annotated[int | None, Parameter(name="--offset-s")] = None
    time_zone: str | None = None
    jitter: Annotated[int | None, Parameter(name="--jitter-s")] = None
    start_at: str | None = None
    end_at: str | None = None
    exclude: list[str] | None = None
    overlap: Literal["skip", "queue", "stop_previous", "allow"] | None = None
    catch_up: Annotated[int | None, Parameter(name="--catch-up-s")] = None
    pause_after_failures: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the given options as fields of a definition.

        A cron expression and an interval replace each other.
        """
        words = {
            "every": "every_s",
            "offset": "offset_s",
            "jitter": "jitter_s",
            "catch_up": "catch_up_s",
            "exclude": "excluded",
        }
        found = filled({words.get(name, name): value for name, value in asdict(self).items()})
        found |= {
            n: time_of(f"--{n.replace('_', '-')}", found[n])
            for n in ("start_at", "end_at")
            if n in found
        }
        if self.cron is not None and self.every is None:
            found |= {"every_s": None, "offset_s": 0}
        if self.every is not None and self.cron is None:
            found |= {"cron": None}
        return found


_NO_TIMES = TimeOptions()


def create(
    name: Name,
    /,
    *,
    crawler: str | None = None,
    arg: Arguments = None,
    setting: Settings = None,
    version: str | None = None,
    file: Path | None = None,
    times: Annotated[TimeOptions, Parameter(name="*")] = _NO_TIMES,
    project: Project = None,
    by: By = None,
) -> None:
    """Create a schedule, or replace the definition of an existing one.

    Parameters
    ----------
    crawler
        run this crawler at each due time
    version
        version of the crawler's package; default: the current one at each due time
    file
        definition as JSON, for a run, manager or graph; - is standard input
    """
    if (crawler is None) == (file is None):
        raise WrongUsage("give either --crawler or --file", "crawlctl schedule create --help")
    body: dict[str, Any] = _definition(file) if file is not None else {"run": {"crawler": crawler}}
    if crawler is not None:
        own = {"args": pairs(arg, "-a"), "settings": pairs(setting, "-s"), "version": version}
        body["run"] |= filled(own)
    elif arg or setting or version:
        raise WrongUsage("-a, -s and --version need --crawler", "write them into the file")
    body |= times.given() | filled({"project": project})
    KIND.put(name, body, by, lambda _: "firings trigger")


def update(
    name: Name, /, *, times: Annotated[TimeOptions, Parameter(name="*")] = _NO_TIMES, by: By = None
) -> None:
    """Change the due times of a schedule, and its rules for overlaps and late starts.

    The target does not change; use create for that.
    """
    KIND.put(name, KIND.definition(name, times.given()), by, lambda _: "firings trigger")


def _definition(file: Path) -> dict[str, Any]:
    found = json_of(f"--file {file}", content_of(file))
    if not isinstance(found, dict):
        raise WrongUsage(
            f"--file {file} has no JSON object", "see the example in docs/schedules.md"
        )
    return found


def list_schedules(*, project: Project = None, limit: Limit = 50) -> None:
    """List schedules, oldest first."""
    KIND.list_all(limit, project=project)


def describe(name: Name, /) -> None:
    """Show everything about a schedule, including its next due times and the days on which clocks
    change.
    """
    KIND.describe(name)


def firings(
    name: Name,
    /,
    *,
    decision: Decision | None = None,
    limit: Limit = 50,
) -> None:
    """List due times with their results, latest first.

    Parameters
    ----------
    decision
        only due times with this result
    """
    empty = "nothing has been due yet"
    show_list(
        KIND.path(name, "/firings"), DUE, key="due_at", empty=empty, limit=limit, decision=decision
    )


def pause(name: Name, /, *, reason: Shown = None, by: By = None) -> None:
    """Pause a schedule: nothing starts at its due times until it is resumed. The due times are
    still recorded."""
    KIND.pause(name, reason, by)


def resume(name: Name, /) -> None:
    """Resume a paused schedule. Use backfill for due times during the pause."""
    KIND.post(name, "resume")


def trigger(name: Name, /, *, by: By = None) -> None:
    """Start the target of a schedule now, even while the schedule is paused.

    The target waits if the previous target is still executing.
    """
    path = f"{KIND.path(name)}/trigger"
    with current().gateway() as gateway:
        _asked(gateway.post(path, {"requested_by": by or user()}, key=uuid.uuid4().hex))


def backfill(
    name: Name,
    /,
    *,
    after: str,
    until: str | None = None,
    by: By = None,
) -> None:
    """Start the target for past due times at which no target started, one after another.

    Parameters
    ----------
    after
        only due times after this time or age, such as 2h or 3d
    until
        only due times up to this time; default: now
    """
    present = now()
    body = {"after": time_of("--after", after, present), "requested_by": by or user()}
    if until:
        body["until"] = time_of("--until", until, present)
    with current().gateway() as gateway:
        _asked(gateway.post(f"{KIND.path(name)}/backfill", body))


def delete(name: Name, /) -> None:
    """Delete a schedule. Its recorded due times stay, and started targets continue."""
    KIND.delete(name)


def _asked(found: Document) -> None:
    say_note(found)
    emit_list(
        "firings",
        found.get("firings") or [],
        DUE,
        name="due_at",
        empty="nothing was due in this time",
    )

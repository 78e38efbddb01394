"""``crawlctl schedule``: verbs that make, change, show and steer schedules."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.dev_json import user
from crawler_lifecycle.subjects import DUE, SCHEDULE, Document

from .inputs import content_of, json_of, pairs
from .output import emit_list, now, say_note
from .problems import CommandFailed, Exit
from .session import current, time_of
from .subjects import By, Limit, Named, Shown

KIND = Named(SCHEDULE)
Name = Annotated[str, Parameter(help="the schedule's name")]
Decision = Literal["started", "queued", "skipped_overlap", "paused", "missed", "failed"]


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """Options that say when it is due, and what happens then."""

    cron: Annotated[str | None, Parameter(help="minute hour day month weekday, by the clock of --time-zone")] = None
    every: Annotated[int | None, Parameter(name="--every-s", help="seconds between due times")] = None
    offset: Annotated[int | None, Parameter(name="--offset-s", help="seconds that these are moved by")] = None
    time_zone: Annotated[str | None, Parameter(help="zone of the IANA database; default: UTC")] = None
    jitter: Annotated[int | None, Parameter(name="--jitter-s", help="start up to so many seconds later")] = None
    start_at: Annotated[str | None, Parameter(help="nothing is due before, such as 2026-12-01T00:00Z")] = None
    end_at: Annotated[str | None, Parameter(help="nothing is due after")] = None
    exclude: Annotated[list[str] | None, Parameter(help="a date on which nothing is due; may be repeated")] = None
    overlap: Annotated[
        Literal["skip", "queue", "stop_previous", "allow"] | None,
        Parameter(help="while what began before has no verdict; default: skip"),
    ] = None
    catch_up: Annotated[int | None, Parameter(name="--catch-up-s", help="how late one may begin; default: 600")] = None
    pause_after_failures: Annotated[int | None, Parameter(help="pause after so many failures in a row")] = None

    def given(self) -> dict[str, Any]:
        """The options that were named, as a definition has them; cron and an interval take each other's place."""
        words = {"every": "every_s", "offset": "offset_s", "jitter": "jitter_s", "catch_up": "catch_up_s"}
        words["exclude"] = "excluded"
        found = {words.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}
        found = {name: value for name, value in found.items() if value is not None}
        found |= {n: time_of(f"--{n.replace('_', '-')}", found[n]) for n in ("start_at", "end_at") if n in found}
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
    crawler: Annotated[str | None, Parameter(help="run this crawler at each due time")] = None,
    arg: Annotated[
        list[str] | None, Parameter(name=["--arg", "-a"], help="argument of the crawler, name=value")
    ] = None,
    setting: Annotated[list[str] | None, Parameter(name=["--setting", "-s"], help="setting, NAME=value")] = None,
    file: Annotated[
        Path | None, Parameter(help="a definition in JSON, also of a manager or a graph; -: standard input")
    ] = None,
    times: Annotated[TimeOptions, Parameter(name="*")] = _NO_TIMES,
    by: By = None,
) -> int:
    """Make a schedule; one that is there gets this definition."""
    if (crawler is None) == (file is None):
        raise CommandFailed(
            Exit.USAGE, "give --crawler or --file, and not both", None, "crawlctl schedule create --help"
        )
    body: dict[str, Any] = _definition(file) if file is not None else {"run": {"crawler": crawler}}
    if crawler is not None:
        own = {"args": pairs(arg, "-a"), "settings": pairs(setting, "-s")}
        body["run"] |= {name: value for name, value in own.items() if value}
    elif arg or setting:
        raise CommandFailed(Exit.USAGE, "-a and -s go with --crawler", None, "put them into the file")
    return KIND.put(name, {**body, **times.given()}, by, lambda _: "due trigger")


def update(name: Name, /, *, times: Annotated[TimeOptions, Parameter(name="*")] = _NO_TIMES, by: By = None) -> int:
    """Change when a schedule is due, and what happens then; what it begins stays (create gives all of it anew)."""
    return KIND.put(name, KIND.definition(name, times.given()), by, lambda _: "due trigger")


def _definition(file: Path) -> dict[str, Any]:
    found = json_of(f"--file {file}", content_of(file))
    if not isinstance(found, dict):
        raise CommandFailed(Exit.USAGE, f"--file {file} holds no object", None, "docs/schedules.md has an example")
    return found


def list_schedules(*, limit: Limit = 50) -> int:
    """List schedules, in the order in which they were made."""
    return KIND.list_all(limit)


def describe(name: Name, /) -> int:
    """Show everything about a schedule: its next due times, and days whose clock is set."""
    return KIND.describe(name)


def due(
    name: Name,
    /,
    *,
    decision: Annotated[Decision | None, Parameter(help="only those that came to this")] = None,
    limit: Limit = 50,
) -> int:
    """List due times, the latest first, each with what became of it."""
    with current().gateway() as gateway:
        rows = gateway.rows(f"{KIND.path(name)}/due", limit=limit, decision=decision)
    emit_list("due", rows, DUE, name="due_at", empty="nothing was due yet")
    return Exit.DONE


def pause(name: Name, /, *, reason: Shown = None, by: By = None) -> int:
    """Have due times begin nothing until it is resumed; each still has its line."""
    return KIND.pause(name, reason, by)


def resume(name: Name, /) -> int:
    """Let a paused schedule go on; what was due meanwhile begins by backfill alone."""
    return KIND.post(name, "resume")


def trigger(name: Name, /, *, by: By = None) -> int:
    """Have it be due now, also while it is paused; what overlaps waits."""
    path = f"{KIND.path(name)}/trigger"
    with current().gateway() as gateway:
        _asked(gateway.post(path, {"requested_by": by or user()}, key=uuid.uuid4().hex))
    return Exit.DONE


def backfill(
    name: Name,
    /,
    *,
    after: Annotated[str, Parameter(help="due times behind this: a time, or 2h, 3d ago")],
    until: Annotated[str | None, Parameter(help="and up to this; default: now")] = None,
    by: By = None,
) -> int:
    """Have past due times begin that began nothing, one after the other."""
    present = now()
    body = {"after": time_of("--after", after, present), "requested_by": by or user()}
    if until:
        body["until"] = time_of("--until", until, present)
    with current().gateway() as gateway:
        _asked(gateway.post(f"{KIND.path(name)}/backfill", body))
    return Exit.DONE


def delete(name: Name, /) -> int:
    """Delete a schedule; its due times stay on record, and what they began goes on."""
    return KIND.delete(name)


def _asked(found: Document) -> None:
    say_note(found)
    emit_list("due", found.get("due") or [], DUE, name="due_at", empty="nothing was due in this time")

"""Verbs that make a schedule or change it: create, update."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.named import By, Named
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.runs.start import pairs
from crawler_lifecycle.cli.session import time_of

from . import tables

KIND = Named("schedule", tables.SCHEDULES, tables.facts)
Name = Annotated[str, Parameter(help="the schedule's name")]


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
        """Those that were named, as a definition has them; cron and an interval take each other's place."""
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
    body: dict[str, Any] = _read(file) if file is not None else {"run": {"crawler": crawler}}
    if crawler is not None:
        own = {"args": pairs(arg, "-a"), "settings": pairs(setting, "-s")}
        body["run"] |= {name: value for name, value in own.items() if value}
    elif arg or setting:
        raise CommandFailed(Exit.USAGE, "-a and -s go with --crawler", None, "put them into the file")
    return KIND.put(name, {**body, **times.given()}, by, lambda _: "due trigger")


def update(
    name: Name,
    /,
    *,
    times: Annotated[TimeOptions, Parameter(name="*")] = _NO_TIMES,
    by: By = None,
) -> int:
    """Change when a schedule is due, and what happens then; what it begins stays (create gives all of it anew)."""
    return KIND.put(name, KIND.definition(name, times.given()), by, lambda _: "due trigger")


def _read(file: Path) -> dict[str, Any]:
    try:
        text = sys.stdin.buffer.read().decode() if str(file) == "-" else file.read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise CommandFailed(Exit.USAGE, f"--file {file} cannot be read", str(error)) from None
    if not isinstance(found, dict):
        raise CommandFailed(Exit.USAGE, f"--file {file} holds no object", None, "docs/schedules.md has an example")
    return found

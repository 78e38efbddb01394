"""Findings, and the run of all checks: at the same time, each with a time limit, none able to hide another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import import_module, util
from typing import TYPE_CHECKING, Literal

from crawler_lifecycle.domain.clocks import CLOCK_OFF_MAX_S

if TYPE_CHECKING:
    from crawler_lifecycle.redaction import Redactor
    from crawler_lifecycle.settings import Settings

    from .sources import Sources

Level = Literal["ok", "warn", "bad"]

#: Times of the cluster and ours are compared to the second; below this nobody is misled.
CLOCK_WARN_S = 2.0

_ARCHIVE = "crawler_lifecycle.adapters.archive"
#: Modules that are slow to import, by what needs them.
SLOW = {
    "all": ("anyio", "h11", "httpcore", "crawler_lifecycle.store.tables", "crawler_lifecycle.store.base.checks"),
    "s3": (
        *("boto3.session", "boto3.s3.inject", "boto3.s3.transfer"),
        *(f"{_ARCHIVE}.{name}" for name in ("bundles", "s3.archive", "s3.upload")),
    ),
    "eventbridge": ("boto3", "botocore.config", "botocore.exceptions"),
    "pusher": ("pusher",),
}


# --- findings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: what was checked, how it is, and what to do about it."""

    check: str
    level: Level
    text: str
    cure: str | None = None


def ok(check: str, text: str) -> Line:
    """A finding that nobody needs to look at."""
    return Line(check, "ok", text)


def warn(check: str, text: str, cure: str | None) -> Line:
    """A finding that will hurt later, or hurts a little."""
    return Line(check, "warn", text, cure)


def bad(check: str, text: str, cure: str | None) -> Line:
    """A finding with which runs fail or wait."""
    return Line(check, "bad", text, cure)


def of_error(check: str, error: object, *, level: Level = "bad", cure: str | None = None) -> Line:
    """The finding of an error of ours: its text names the cure behind the last semicolon, else ``cure`` does."""
    what, _, told = str(error).rpartition("; ")
    return Line(check, level, what or told, told if what else cure)


def counted(number: int, what: str) -> str:
    """``1 crawler``, ``2 crawlers``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def clock_line(whose: str, ahead_s: float, uncertain_s: float) -> Line:
    """The line about how far another clock is ahead of ours, known to within ``uncertain_s``.

    Bad beyond what proofs of absence allow for.
    """
    off = max(0.0, abs(ahead_s) - uncertain_s)
    if off < CLOCK_WARN_S:
        return ok("clock", f"agrees with that of {whose} within {max(uncertain_s, abs(ahead_s)) + 0.05:.1f} s")
    words = f"this machine is {off:.1f} s {'behind' if ahead_s > 0 else 'ahead of'} {whose}"
    cure = "synchronise both clocks (chrony, systemd-timesyncd): lags and schedules are wrong by that much"
    if off <= CLOCK_OFF_MAX_S:
        return warn("clock", words, cure)
    cure += f", and beyond {CLOCK_OFF_MAX_S:.0f} s a task may come to life after a stop proved that it will not"
    return bad("clock", words, cure)


# --- checks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Context:
    """The knowledge of checks. ``settings`` is ``None`` when they are wrong; ``fix`` allows them to mend things."""

    settings: Settings | None
    sources: Sources
    redactor: Redactor
    fix: bool = False
    limit_s: float = 15.0
    token: str | None = None

    @property
    def call_s(self) -> float:
        """Seconds for one call of a check: it makes a few, and each one that fails has a line to write."""
        return self.limit_s / 3

    @property
    def known(self) -> Settings:
        """The settings, for checks that are run only when there are any."""
        if self.settings is None:
            raise RuntimeError("this check needs settings")
        return self.settings


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to check; ``look`` may take ``Context.limit_s`` and raise anything."""

    name: str
    look: Callable[[Context], Sequence[Line]]
    needs_settings: bool = True


def _begun(check: Check, context: Context) -> Future[Sequence[Line]]:
    """A check in a thread of its own. The thread is a daemon: one that hangs must not keep the program from ending."""
    found: Future[Sequence[Line]] = Future()

    def look() -> None:
        try:
            found.set_result(check.look(context))
        except Exception as error:
            text = f"the check itself failed: {type(error).__name__}: {error}"
            found.set_result([bad(check.name, text, "please report this")])

    threading.Thread(target=look, name=f"doctor-{check.name}", daemon=True).start()
    return found


def run(checks: Sequence[Check], context: Context) -> Iterator[Line]:
    """The findings of all checks in their order. Takes ``context.limit_s`` seconds at most, whatever they do."""
    until = time.monotonic() + context.limit_s
    chosen = [check for check in checks if context.settings is not None or not check.needs_settings]
    for check, found in [(check, _begun(check, context)) for check in chosen]:
        try:
            lines = found.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            cure = "look at what it speaks with; --timeout gives checks more time"
            lines = [bad(check.name, f"no answer within {context.limit_s:g} s", cure)]
        for line in lines:
            cured = None if line.cure is None or line.level == "ok" else context.redactor.text(line.cure)
            yield replace(line, text=context.redactor.text(line.text), cure=cured)


def load(settings: Settings) -> None:
    """Import what checks of these settings use, before their threads begin.

    Threads that import the same packages at once wait for each other: the time of each check would go by, and where two
    wait for one another Python hands out a module that is half loaded.
    """
    from crawler_lifecycle.clusters.kind import kind_of

    needed = {
        "all": True,
        "s3": settings.archive.url.startswith("s3:") or settings.cluster.files_url is not None,
        "eventbridge": settings.events.url.startswith("eventbridge:"),
        # Where the package is missing, its check tells.
        "pusher": settings.pusher.app_id is not None and util.find_spec("pusher") is not None,
    }
    slow = [name for what, names in SLOW.items() if needed[what] for name in names]
    for name in (*slow, *kind_of(settings.cluster).slow):
        import_module(name)

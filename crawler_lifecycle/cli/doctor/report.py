"""Findings, and the concurrent execution of all checks with a time limit.

No check can block another.
"""

from __future__ import annotations

import re
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

#: The acceptable difference between two clocks, in seconds.
CLOCK_WARN_S = 2.0

_ARCHIVE = "crawler_lifecycle.adapters.archive"
#: Section of the settings -> the modules that the section needs and that are slow to import.
SLOW = {
    "all": ("crawler_lifecycle.store.tables", "crawler_lifecycle.store.base.checks"),
    "s3": (
        "boto3.session",
        "boto3.s3.inject",
        "boto3.s3.transfer",
        *(f"{_ARCHIVE}.{name}" for name in ("bundles", "s3.archive", "s3.upload")),
    ),
    "eventbridge": ("boto3", "botocore.config", "botocore.exceptions"),
    "pusher": ("pusher",),
}


# --- findings -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: the check, its level, a sentence, and the fix."""

    check: str
    level: Level
    text: str
    fix: str | None = None


def ok(check: str, text: str) -> Line:
    """Return a finding that needs no action."""
    return Line(check, "ok", text)


def warn(check: str, text: str, fix: str | None) -> Line:
    """Return a finding about a minor problem, or about one that may appear later."""
    return Line(check, "warn", text, fix)


def bad(check: str, text: str, fix: str | None) -> Line:
    """Return a finding about a problem that makes runs fail or wait."""
    return Line(check, "bad", text, fix)


def of_error(check: str, error: object, *, level: Level = "bad", fix: str | None = None) -> Line:
    """Return a finding for one of our errors.

    The fix is the part of the error's text after the last semicolon. If there is no semicolon, it
    is ``fix``.
    """
    what, _, last = str(error).rpartition("; ")
    return Line(check, level, what or last, last if what else fix)


def old(check: str, product: str, version: str, least: tuple[int, int], lacks: str) -> list[Line]:
    """Return a finding if ``version`` is older than ``least``; an unreadable version
    gives no finding.
    """
    found = re.search(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= least:
        return []
    needed = ".".join(map(str, least))
    return [
        bad(
            check,
            f"{product} {version} is too old: {lacks}",
            f"upgrade {product} to {needed} or newer",
        )
    ]


def clock_line(whose: str, ahead_s: float, uncertain_s: float) -> Line:
    """Return a finding about a clock that is ``ahead_s`` ahead of ours, plus or minus
    ``uncertain_s``.

    A difference of more than ``CLOCK_OFF_MAX_S``, the maximum that a proof of absence allows, is
    bad.
    """
    off = max(0.0, abs(ahead_s) - uncertain_s)
    if off < CLOCK_WARN_S:
        return ok(
            "clock",
            f"agrees with the clock of {whose} within "
            f"{max(uncertain_s, abs(ahead_s)) + 0.05:.1f} s",
        )
    words = f"this machine is {off:.1f} s {'behind' if ahead_s > 0 else 'ahead of'} {whose}"
    fix = (
        "synchronise both clocks (chrony, systemd-timesyncd): lags and schedules are wrong by "
        "this difference"
    )
    if off <= CLOCK_OFF_MAX_S:
        return warn("clock", words, fix)
    fix += (
        f", and beyond {CLOCK_OFF_MAX_S:.0f} s a task may start after a stop proved that it cannot"
    )
    return bad("clock", words, fix)


# --- checks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Context:
    """The input for all checks.

    ``settings`` is ``None`` if the settings are invalid. If ``fix`` is true, repairs are permitted.
    """

    settings: Settings | None
    sources: Sources
    redactor: Redactor
    fix: bool = False
    limit_s: float = 15.0
    services: str | None = None
    """The namespace of our services, whose accounts are checked. If it is ``None``, only our own
    permissions are checked.
    """

    @property
    def call_s(self) -> float:
        """The time limit of one call in seconds. A check makes several calls, and must report an
        error within ``limit_s``.
        """
        return self.limit_s / 3

    @property
    def known(self) -> Settings:
        """The settings, for checks that run only if the settings are valid."""
        if self.settings is None:
            raise RuntimeError("this check needs valid settings")
        return self.settings


@dataclass(frozen=True, slots=True)
class Check:
    """One check; ``look`` may take ``Context.limit_s`` and raise any error."""

    name: str
    look: Callable[[Context], Sequence[Line]]
    needs_settings: bool = True


def _begun(check: Check, context: Context) -> Future[Sequence[Line]]:
    """Start a check in its own daemon thread. If the check hangs, such a thread does not keep the
    program from ending.
    """
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
    """Yield the findings of all checks in order, within ``context.limit_s`` seconds even if a check
    hangs.
    """
    until = time.monotonic() + context.limit_s
    chosen = [check for check in checks if context.settings is not None or not check.needs_settings]
    for check, found in [(check, _begun(check, context)) for check in chosen]:
        try:
            lines = found.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            fix = "examine the system that it calls, or give checks more time with --timeout"
            lines = [bad(check.name, f"no response within {context.limit_s:g} s", fix)]
        for line in lines:
            fixed = (
                None if line.fix is None or line.level == "ok" else context.redactor.text(line.fix)
            )
            yield replace(line, text=context.redactor.text(line.text), fix=fixed)


def load(settings: Settings) -> None:
    """Import the modules that the checks need before their threads start.

    Threads that import the same packages wait for each other, which would use up the checks' time.
    In a deadlock, Python even returns a partly loaded module.
    """
    from crawler_lifecycle.clusters.kind import kind_of

    needed = {
        "all": True,
        "s3": settings.archive.url.startswith("s3:") or settings.cluster.files_url is not None,
        "eventbridge": settings.events.url.startswith("eventbridge:"),
        # If the package is missing, the check of the packages reports that.
        "pusher": settings.pusher.app_id is not None and util.find_spec("pusher") is not None,
    }
    slow = [name for what, names in SLOW.items() if needed[what] for name in names]
    for name in (*slow, *kind_of(settings.cluster).slow):
        import_module(name)

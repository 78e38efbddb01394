"""The rules that map the end of the crawler to the runner's exit code and finish reason, as pure
functions.
"""

from __future__ import annotations

import signal
from typing import NamedTuple

from . import contract, reported

BEFORE_START = "shutdown-before-start"


class Evidence(NamedTuple):
    """The facts that the runner has about the end of a crawler."""

    scrapy: bool
    stop_asked: bool
    stop_signal: int
    exit_code: int | None
    """``None`` if a signal killed the crawler, or if it never started."""
    signal: int | None
    finish_reason: str | None
    began: bool
    """True if the crawler reported any stats."""
    disk_full: bool
    killed_late: bool = False
    """True if the runner killed it at the end of its grace period."""


def exit_of(end: Evidence) -> tuple[int, str | None]:
    """Return the runner's exit code (see ``contract``) and the finish reason, which is ``None`` if
    unknown.
    """
    if end.exit_code is None and end.signal is None:
        return contract.STOPPED, BEFORE_START
    if end.signal is not None:
        return _killed(end)
    code, reason = _scrapy(end) if end.scrapy else _command(end)
    if end.disk_full and code in (contract.FAILED, contract.STOPPED_UNCLEANLY):
        return contract.DISK_FULL, reason
    return code, reason


def _killed(end: Evidence) -> tuple[int, str | None]:
    assert end.signal is not None
    of_stop = end.signal in (end.stop_signal, signal.SIGTERM, signal.SIGINT) or end.killed_late
    if not (end.stop_asked and of_stop):
        return 128 + end.signal, end.finish_reason
    if end.scrapy and not end.began and not end.killed_late:
        # Before its spider opens, Scrapy has no signal handlers.
        return contract.STOPPED, BEFORE_START
    return contract.STOPPED_UNCLEANLY, end.finish_reason


def _scrapy(end: Evidence) -> tuple[int, str | None]:
    reason = end.finish_reason
    if reason is None:
        if end.exit_code == contract.BAD_CONFIGURATION:
            return contract.BAD_CONFIGURATION, None
        if end.stop_asked:
            return (
                (contract.STOPPED_UNCLEANLY, None)
                if end.began
                else (contract.STOPPED, BEFORE_START)
            )
        return contract.FAILED, None
    if reason == "finished":
        return (contract.FINISHED if end.exit_code == 0 else contract.FAILED), reason
    if reason == "shutdown":
        # Scrapy reports this reason, too, when a spider fails to open. Only a signal that we
        # forwarded proves a stop.
        return (contract.STOPPED, reason) if end.stop_asked else (contract.FAILED, None)
    return (contract.FAILED if reason in reported.FAILED_WORDS else contract.FINISHED), reason


def _command(end: Evidence) -> tuple[int, str | None]:
    """Return the exit code and finish reason for a program other than Scrapy.

    Only the service knows what the program's exit codes mean, so they are returned unchanged.

    Exit code 0 means finished unless the program reports another reason. If a stop was requested,
    the runner itself decides.
    """
    assert end.exit_code is not None
    if not end.stop_asked:
        return end.exit_code, end.finish_reason or ("finished" if end.exit_code == 0 else None)
    if end.finish_reason == "finished" and end.exit_code == 0:
        return contract.FINISHED, "finished"  # the stop was requested too late
    if end.exit_code in (0, contract.STOPPED):
        return contract.STOPPED, end.finish_reason or "shutdown"
    return contract.STOPPED_UNCLEANLY, end.finish_reason

"""The possible outcomes of a task, by the journals of its process and of the soak:
docs/lifecycle.md, "How an end is read".

Certain evidence allows only one end. If two things happened at nearly the same time, or nobody got
an answer, either of them may have come first, and both outcomes are allowed, but never an outcome
that neither explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.soak.journal import Ask, Kill, Process

End = tuple[str, str]

CANCELLED: set[End] = {("CANCELLED", "cancelled"), ("CANCELLED", "cancel_timeout")}
LOST: End = ("LOST", "lost")
OOM: End = ("FAILED", "killed by oom")
FAILED: End = ("FAILED", "failed")
INTERRUPTED: End = ("FAILED", "interrupted")
SUCCEEDED: End = ("SUCCEEDED", "finished")
#: The seconds between the last line of a crawler and the time that its supervisor records as its
#: end, on a busy machine.
CLOSE_S = 5.0


@dataclass(frozen=True)
class Stops:
    """Whether a stop was in force at an end: certainly, possibly, or not at all."""

    may: bool
    must: bool
    limit: str | None = None
    """The outcome of a limit that may have been reached by then."""
    force: bool = False
    """Whether one of them may have been a forced one, or have become one."""


@dataclass(frozen=True)
class Era:
    """The time from the beginning of a run, or from its resume after an end, to its next end."""

    since: float
    former_end: float
    """The end before it; a stop that was answered before that is history."""


def stops_at(
    end: float, asks: Iterable[Ask], era: Era, limit: str | None = None, *, escalates: bool = False
) -> Stops:
    """Return the stops by a person that were in force at this moment."""
    may = must = force = False
    for ask in asks:
        if ask.answer == "no" or ask.sent > end + CLOSE_S or ask.answered < era.former_end:
            continue
        may, force = True, force or ask.force or escalates
        # A signal may still be on the way to the process, but a stop that the gateway has confirmed
        # is recorded.
        recorded = ask.way == "gateway" and ask.answer == "ok" and ask.detail.startswith("202")
        must = must or (recorded and ask.sent > era.since and ask.answered < end)
    return Stops(may, must, limit, force)


def own_end(process: Process) -> set[End]:
    """Return the meaning of the process's own end if nobody requested a stop."""
    end = process.end
    if end is None:
        return set()
    if end.get("signal") is not None:
        return {FAILED}
    reason = end.get("reason")
    status, outcome = FAILED if int(end["code"]) or reason == "shutdown" else SUCCEEDED
    own = {(status, reason if reason and reason != "shutdown" else outcome)}
    # Only a received signal proves that somebody stopped the process.
    return own | {INTERRUPTED} if process.signals else own


def finished(process: Process) -> bool:
    """Return whether the process reported that it finished, and then exited with 0. A later stop
    does not change this.
    """
    end = process.end
    return bool(end and end.get("code") == 0 and end.get("reason") == "finished")


def silent(process: Process) -> bool:
    """Return whether the process exited with 0 without a report. Its runner reports this as
    finished, unless a stop reached the runner first.
    """
    end = process.end
    return bool(end and end.get("code") == 0 and end.get("reason") is None)


def allowed(
    process: Process, kills: Sequence[Kill], stops: Stops, *, starves: bool = False
) -> set[End]:
    """Return every end that may be recorded for the task of this process.

    With ``starves``, it needs more memory than it has.
    """
    deadly = [kill for kill in kills if kill.whom in ("crawler", "runner")]
    if process.lost is not None:
        deadly.append(Kill(process.name, "runner", process.lost))
    natural = own_end(process)
    found: set[End] = set()
    if process.end is not None:
        interrupted = [kill for kill in deadly if kill.at < process.end["at"] - 0.05]
        # Without its runner, nobody writes the summary, whatever the crawler does then.
        if not any(kill.whom == "runner" for kill in interrupted):
            found |= natural
    if starves and process.hungry is not None:
        # The process that watches its memory may have been killed before.
        found = {OOM} if not kills else found | {OOM}
    if any(kill.whom == "disk" for kill in kills):
        found |= {FAILED, LOST}
    if deadly:
        found.add(FAILED)
        if any(kill.whom in ("supervisor", "folder") for kill in kills):
            found.add(LOST)
    # The service may kill a process between its last report and its exit, which nobody can observe
    # from outside.
    if stops.may and (not finished(process) or deadly or stops.force or process.signals):
        sure = stops.must and not finished(process) and not silent(process)
        found = CANCELLED | (set() if sure else found)
    if stops.limit is not None and not stops.must:
        found |= {
            ("FAILED", stops.limit),
            *((("CANCELLED", stops.limit),) if process.end is None else ()),
        }
    return found


def never_executed(kills: Sequence[Kill], stops: Stops) -> set[End]:
    """Return every possible end of a task of which no process ever began."""
    found: set[End] = set()
    if stops.may:
        found |= CANCELLED
    if stops.limit is not None:
        found |= {("CANCELLED", stops.limit), ("FAILED", stops.limit)}
    if kills:
        found |= {LOST, FAILED}
    return found


def verdicts(ends: Sequence[End], stops: Stops, limit: str | None) -> set[End]:
    """Return every verdict that a run may have over tasks with these outcomes."""
    if all(status == "SUCCEEDED" for status, _ in ends):
        outcomes = {outcome for _, outcome in ends}
        return {("COMPLETED", outcomes.pop() if len(outcomes) == 1 else "finished")}
    found: set[End] = set()
    if stops.may:
        found.add(("FAILED", "cancelled"))
    if not stops.must:
        bad = {outcome for status, outcome in ends if status != "SUCCEEDED"}
        if any(status == "SUCCEEDED" for status, _ in ends):
            found.add(("FAILED", "partial"))
        else:
            found.add(("FAILED", bad.pop() if len(bad) == 1 else "failed"))
        if limit is not None:
            found.add(("FAILED", limit))
    return found

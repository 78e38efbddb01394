"""Verbs that steer a manager or wait for it: stop, force-stop, pause, resume, cap, wait, watch."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.session import current, user
from crawler_lifecycle.cli.subjects import Kind, await_end, be_sure, each, show

from . import tables

MANAGER = Kind("manager", tables.STATE, tables.line)

ManagerId = Annotated[int, Parameter(help="the manager's id")]
Goal = Literal["completed", "ended"]


def stop(
    manager: ManagerId,
    /,
    *managers: Annotated[int, Parameter(help="more managers")],
    reason: Annotated[str | None, Parameter(help="written into the record")] = None,
    leave: Annotated[bool, Parameter(negative=(), help="its runs go on")] = False,
    force: Annotated[bool, Parameter(negative=(), help="kill what its runs execute")] = False,
    by: Annotated[str | None, Parameter(help="who asks for it; default: you")] = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for the proof that none of its runs executes")] = False,
) -> int:
    """Ask managers to end, with their runs: nothing more is started, nothing retried."""
    body = {"force": force or None, "leave": leave or None, "reason": reason, "requested_by": by or user()}
    return each(MANAGER, (manager, *managers), MANAGER.ask("stop", body), wait=wait)


def force_stop(
    manager: ManagerId,
    /,
    *managers: Annotated[int, Parameter(help="more managers")],
    reason: Annotated[str | None, Parameter(help="written into the record")] = None,
    yes: Annotated[bool, Parameter(negative=(), help="do not ask; needed without a terminal")] = False,
    by: Annotated[str | None, Parameter(help="who asks for it; default: you")] = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for the proof that none of its runs executes")] = False,
) -> int:
    """End managers and their runs at once, killing what they execute."""
    be_sure(MANAGER, (manager, *managers), "every run of manager", yes=yes)
    return stop(manager, *managers, reason=reason, force=True, by=by, wait=wait)


def pause(manager: ManagerId, /, *managers: Annotated[int, Parameter(help="more managers")]) -> int:
    """Have managers start nothing more until they are resumed; what runs goes on."""
    return each(MANAGER, (manager, *managers), MANAGER.ask("pause"))


def resume(
    manager: ManagerId,
    /,
    *,
    wait: Annotated[bool, Parameter(negative=(), help="wait for its end; the exit code tells how it ended")] = False,
) -> int:
    """Let a paused manager go on; one that has ended goes on as its next attempt."""
    session = current()
    with session.gateway() as gateway:
        answer = MANAGER.ask("resume")(gateway, manager)
        if wait:
            return await_end(MANAGER, gateway, manager, after=answer)
    show(MANAGER, [answer])
    session.say(f"next: crawlctl manager watch {manager}")
    return Exit.DONE


def cap(manager: ManagerId, most: Annotated[int, Parameter(help="0: as its class says")], /) -> int:
    """Set how many runs a manager may have at once; a smaller cap ends nothing."""
    return each(MANAGER, (manager,), MANAGER.ask("cap", {"cap": most}))


def wait(
    manager: ManagerId,
    /,
    *,
    goal: Annotated[Goal, Parameter(name="--for", help="what to wait for")] = "completed",
) -> int:
    """Wait for a manager; give up after --timeout (exit 7), without it never.

    With --for completed the exit code tells how it ended: 0 completed, 5 failed, 6 stopped.
    """
    with current().gateway() as gateway:
        return await_end(MANAGER, gateway, manager, goal)


def watch(manager: ManagerId, /) -> int:
    """Watch a manager to its end; the exit code tells how it ended: 0 completed, 5 failed, 6 stopped."""
    from crawler_lifecycle.cli.watching import watch_one  # with what draws runs

    with current().gateway() as gateway:
        return watch_one(MANAGER, gateway, manager)

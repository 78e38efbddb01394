"""Verbs that steer a manager or wait for it: stop, force-stop, pause, resume, cap, wait."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.managers import tables
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.session import current, user
from crawler_lifecycle.cli.subjects import Kind, be_sure, each, show, show_state, wait_for

MANAGER = Kind("manager", "crawlctl manager", tables.STATE, lambda gateway, one: gateway.manager(one), tables.line)
THEN = "describe {}"

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
    body = {"force": force, "leave": leave, "reason": reason, "requested_by": by or user()}
    given = {name: value for name, value in body.items() if value not in (None, False)}
    numbers = (manager, *managers)
    return each(MANAGER, numbers, lambda gateway, one: gateway.steer_manager(one, "stop", given), wait=wait, then=THEN)


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
    return each(MANAGER, (manager, *managers), lambda gateway, one: gateway.steer_manager(one, "pause"), then=THEN)


def resume(
    manager: ManagerId,
    /,
    *,
    wait: Annotated[bool, Parameter(negative=(), help="wait for its end; the exit code tells how it ended")] = False,
) -> int:
    """Let a paused manager go on; one that has ended goes on as its next attempt."""
    session = current()
    with session.gateway() as gateway:
        answer = gateway.steer_manager(manager, "resume")
        if wait:
            end = wait_for(MANAGER, gateway, manager, "completed", session.timeout_s, after=answer)
            return show_state(MANAGER, session, *end)
    show(MANAGER, session, [answer])
    session.say(f"next: crawlctl manager watch {manager}")
    return Exit.DONE


def cap(manager: ManagerId, most: Annotated[int, Parameter(help="0: as its class says")], /) -> int:
    """Set how many runs a manager may have at once; a smaller cap ends nothing."""
    return each(MANAGER, (manager,), lambda gateway, one: gateway.steer_manager(one, "cap", {"cap": most}), then=THEN)


def wait(
    manager: ManagerId,
    /,
    *,
    goal: Annotated[Goal, Parameter(name="--for", help="what to wait for")] = "completed",
) -> int:
    """Wait for a manager; give up after --timeout (exit 7), without it never.

    With --for completed the exit code tells how it ended: 0 completed, 5 failed, 6 stopped.
    """
    session = current()
    with session.gateway() as gateway:
        return show_state(MANAGER, session, *wait_for(MANAGER, gateway, manager, goal, session.timeout_s))

"""Verbs that steer a manager or wait for it: stop, force-stop, pause, resume, cap, wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.managers import tables
from crawler_lifecycle.cli.output import Document, clean, emit, show_rows
from crawler_lifecycle.cli.polling import Polling
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.runs.outcome import verdict
from crawler_lifecycle.cli.session import Session, current, user

if TYPE_CHECKING:
    from crawler_lifecycle.cli.gateway import Gateway

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
    return _each((manager, *managers), lambda gateway, one: gateway.steer_manager(one, "stop", given), wait=wait)


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
    wanted = " ".join(str(one) for one in (manager, *managers))
    if not yes:
        if not sys.stdin.isatty():
            again = f"crawlctl manager force-stop {wanted} --yes"
            raise CommandFailed(Exit.USAGE, "force-stop kills crawlers without asking them", None, again)
        print(f"Kill every run of manager {wanted}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandFailed(Exit.ERROR, "nothing was stopped", None, f"crawlctl manager stop {wanted}")
    return stop(manager, *managers, reason=reason, force=True, by=by, wait=wait)


def pause(manager: ManagerId, /, *managers: Annotated[int, Parameter(help="more managers")]) -> int:
    """Have managers start nothing more until they are resumed; what runs goes on."""
    return _each((manager, *managers), lambda gateway, one: gateway.steer_manager(one, "pause"))


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
            return show_state(session, *wait_for(gateway, manager, "completed", session.timeout_s, after=answer))
    _show(session, [answer])
    session.say(f"next: crawlctl manager watch {manager}")
    return Exit.DONE


def cap(manager: ManagerId, most: Annotated[int, Parameter(help="0: as its class says")], /) -> int:
    """Set how many runs a manager may have at once; a smaller cap ends nothing."""
    return _each((manager,), lambda gateway, one: gateway.steer_manager(one, "cap", {"cap": most}))


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
        return show_state(session, *wait_for(gateway, manager, goal, session.timeout_s))


# --- waiting -------------------------------------------------------------------------------------------------------


def wait_for(
    gateway: Gateway, manager_id: int, goal: Goal, timeout_s: float | None, *, after: Document | None = None
) -> tuple[Document, Exit]:
    """Ask for a manager until ``goal`` is reached; the manager as it is then, and the exit code.

    ``after`` is the answer to a start or resume: an end that stood there already is that of an attempt before.
    """
    session = current()
    shown = ""
    row: Document = {}
    for row in Polling(timeout_s=timeout_s).answers(lambda: gateway.manager(manager_id)):
        code = verdict(row, goal) if is_news(row, after) else None
        if code is not None:
            return row, code
        told = tables.line(row)
        if told != shown:
            session.say(told)
        shown = told
    raise gave_up(manager_id, timeout_s, row)


def is_news(row: Document, after: Document | None) -> bool:
    """Whether what the row says is of the attempt that was asked for, and not of one that had ended before."""
    if after is None or not after.get("ended_at"):
        return True
    return row.get("attempt") != after.get("attempt") or row.get("ended_at") != after.get("ended_at")


def gave_up(manager_id: int, timeout_s: float | None, row: Document) -> CommandFailed:
    """The end of a patience that was limited by ``--timeout``."""
    why = f"after {timeout_s:g} s it is {row.get('status') or 'unknown'}"
    again = f"crawlctl manager wait {manager_id}"
    return CommandFailed(Exit.GAVE_UP_WAITING, "gave up waiting; the manager goes on", why, again)


def show_state(session: Session, row: Document, code: Exit) -> int:
    """Write one manager, and say what to look at when it did not go well; its exit code."""
    _show(session, [row])
    if code is not Exit.DONE:
        one = row["manager_id"]
        session.say(f"next: crawlctl manager describe {one} · crawlctl manager resume {one}")
    return code


def _show(session: Session, rows: Sequence[Document]) -> None:
    document: Any = rows[0] if len(rows) == 1 else {"managers": list(rows)}
    names = [row.get("manager_id") for row in rows]
    emit(session, document, names=names, table=lambda: show_rows(session, rows, tables.STATE, empty="no manager"))
    for row in rows:
        if row.get("note"):
            session.say(f"manager {row.get('manager_id')}: {clean(row['note'])}")


def _each(managers: Sequence[int], ask: Callable[[Gateway, int], Document], *, wait: bool = False) -> int:
    """Do the same to several managers: one that cannot be steered does not keep the others from it."""
    session = current()
    answers: list[Document] = []
    failures: list[CommandFailed] = []
    with session.gateway() as gateway:
        for one in dict.fromkeys(managers):
            try:
                answers.append(ask(gateway, one))
            except CommandFailed as failure:
                failures.append(failure)
        if wait:
            answers = [wait_for(gateway, int(a["manager_id"]), "ended", session.timeout_s)[0] for a in answers]
    if answers:
        _show(session, answers)
        if not wait:
            session.say(f"next: crawlctl manager describe {answers[-1]['manager_id']}")
    for told in failures[:-1]:
        session.say(f"crawlctl: {told}")
    if failures:
        raise failures[-1]
    return Exit.DONE

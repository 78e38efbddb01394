"""Verbs that change a run or wait for it: stop, force-stop, resume, look, wait."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import Column, Document, clean, emit, of, show_rows
from crawler_lifecycle.cli.polling import Polling
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import Session, current, user
from crawler_lifecycle.cli.waiting import ageless, waiting_clause

if TYPE_CHECKING:
    from crawler_lifecycle.cli.gateway import Gateway

Goal = Literal["completed", "ended", "started"]

TERMINAL = ("COMPLETED", "FAILED")
STOPPED = ("cancelled", "cancel_timeout")


def status_word(run: Mapping[str, Any]) -> str:
    """The status; of a run that somebody stopped a word that nobody takes for a failure."""
    asked_for = run.get("status") == "FAILED" and run.get("outcome") in STOPPED
    return "stopped" if asked_for else clean(run.get("status"))


STATE = (
    Column("RUN", of("run_id"), right=True),
    Column("CRAWLER", of("crawler")),
    Column("STATUS", status_word),
    Column("OUTCOME", of("outcome")),
    Column("CAUSE", of("cause")),
)


def stop(
    run: Annotated[int, Parameter(help="the run's id")],
    /,
    *runs: Annotated[int, Parameter(help="more runs")],
    reason: Annotated[str | None, Parameter(help="written into the record")] = None,
    force: Annotated[bool, Parameter(negative=(), help="kill what the run executes")] = False,
    request_id: Annotated[str | None, Parameter(help="the same id is recorded once")] = None,
    by: Annotated[str | None, Parameter(help="who asks for it; default: you")] = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for the proof that nothing runs")] = False,
) -> int:
    """Ask runs to end in order. A run that has ended already stays as it is."""
    session = current()

    def ask(gateway: Gateway, run_id: int) -> Document:
        key = request_id or str(uuid.uuid4())
        return gateway.stop(run_id, force=force, reason=reason, request_id=key, requested_by=by or user())

    return _each(session, (run, *runs), ask, wait=wait)


def force_stop(
    run: Annotated[int, Parameter(help="the run's id")],
    /,
    *runs: Annotated[int, Parameter(help="more runs")],
    reason: Annotated[str | None, Parameter(help="written into the record")] = None,
    yes: Annotated[bool, Parameter(negative=(), help="do not ask; needed without a terminal")] = False,
    by: Annotated[str | None, Parameter(help="who asks for it; default: you")] = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for the proof that nothing runs")] = False,
) -> int:
    """End runs at once, killing what they execute. Crawlers get no time to save anything."""
    wanted = " ".join(str(run_id) for run_id in (run, *runs))
    if not yes:
        if not sys.stdin.isatty():
            again = f"crawlctl force-stop {wanted} --yes"
            raise CommandFailed(Exit.USAGE, "force-stop kills crawlers without asking them", None, again)
        print(f"Kill everything that runs for {wanted}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandFailed(Exit.ERROR, "nothing was stopped", None, f"crawlctl stop {wanted}")
    return stop(run, *runs, reason=reason, force=True, by=by, wait=wait)


def resume(
    run: Annotated[int, Parameter(help="the run's id")],
    /,
    *,
    rerun: Annotated[bool, Parameter(negative=(), help="run a COMPLETED run again")] = False,
    by: Annotated[str | None, Parameter(help="who asks for it; default: you")] = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for its end; the exit code tells how it ended")] = False,
    watch: Annotated[bool, Parameter(negative=(), help="the same, with a live view")] = False,
) -> int:
    """Go on with a run that has ended, as its next attempt: what succeeded stays, the rest is executed again."""
    session = current()
    with session.gateway() as gateway:
        answer = gateway.resume(run, rerun=rerun, requested_by=by or user())
        if watch:
            from crawler_lifecycle.cli.watch import watch_run

            return watch_run(session, gateway, run, attempt=int(answer.get("attempt") or 0))
        if wait:
            return show_state(session, *wait_for(gateway, run, "completed", session.timeout_s, after=answer))
    _show(session, [answer])
    session.say(f"next: crawlctl wait {run} · crawlctl describe {run}")
    return Exit.DONE


def look(run: Annotated[int, Parameter(help="the run's id")], /) -> int:
    """Have the cluster asked about a run now, instead of at the next due look."""
    session = current()
    with session.gateway() as gateway:
        answer = gateway.look(run)
    _show(session, [answer])
    session.say(f"next: crawlctl describe {run}")
    return Exit.DONE


def wait(
    run: Annotated[int, Parameter(help="the run's id")],
    /,
    *,
    goal: Annotated[Goal, Parameter(name="--for", help="what to wait for")] = "completed",
) -> int:
    """Wait for a run; give up after --timeout (exit 7), without it never.

    With --for completed the exit code tells how the run ended: 0 completed, 5 failed, 6 stopped. With --for ended and
    --for started it is 0 as soon as that is so; a run that ends before it started counts as ended.
    """
    session = current()
    with session.gateway() as gateway:
        return show_state(session, *wait_for(gateway, run, goal, session.timeout_s))


# --- waiting -------------------------------------------------------------------------------------------------------


def verdict(run: Document, goal: Goal) -> Exit | None:
    """What a run's state means for somebody who waits for ``goal``; ``None`` to go on waiting."""
    status = run.get("status")
    if status not in TERMINAL:
        return Exit.DONE if goal == "started" and status != "INITIALIZING" else None
    if goal == "ended" or status == "COMPLETED":
        return Exit.DONE
    if goal == "started" and run.get("started_at"):
        return Exit.DONE
    return Exit.RUN_STOPPED if run.get("outcome") in STOPPED else Exit.RUN_FAILED


def wait_for(
    gateway: Gateway, run_id: int, goal: Goal, timeout_s: float | None, *, after: Document | None = None
) -> tuple[Document, Exit]:
    """Ask for a run until ``goal`` is reached; the run as it is then, and the exit code that says how it ended.

    ``after`` is the answer to a resume: what is said of an attempt before does not count. A gateway that restarts
    meanwhile is waited for.
    """
    session = current()
    attempt = int((after or {}).get("attempt") or 0)
    shown = ""
    for run in Polling(timeout_s=timeout_s).answers(lambda: gateway.run(run_id)):
        code = verdict(run, goal) if int(run.get("attempt") or 0) >= attempt else None
        if code is not None:
            return run, code
        state = f"run {run_id} {run.get('status')}, {run.get('stage')}"
        words = waiting_clause(run)
        told = state + (f", {words}" if words else _next_look(run))
        if ageless(told) != ageless(shown):
            session.say(told)
        shown = told
    raise gave_up(run_id, timeout_s, shown.partition(f"run {run_id} ")[2])


def _next_look(run: Document) -> str:
    """When the run is looked at again: until then it may have ended, and nobody here knows."""
    at = run.get("next_look_at")
    return f", looked at next at {str(at)[11:19]} UTC" if at else ""


def gave_up(run_id: int, timeout_s: float | None, state: str) -> CommandFailed:
    """The end of a patience that was limited by ``--timeout``."""
    why = f"after {timeout_s:g} s it is {state or 'unknown'}"
    return CommandFailed(Exit.GAVE_UP_WAITING, "gave up waiting; the run goes on", why, f"crawlctl wait {run_id}")


# --- answers -------------------------------------------------------------------------------------------------------


def show_state(session: Session, run: Document, code: Exit) -> int:
    """Write one run, and say what to look at when it did not go well; its exit code."""
    _show(session, [run])
    if code is not Exit.DONE:
        session.say(f"next: crawlctl describe {run['run_id']} · crawlctl resume {run['run_id']}")
    return code


def _show(session: Session, runs: Sequence[Document]) -> None:
    document: Any = runs[0] if len(runs) == 1 else {"runs": list(runs)}
    names = [run.get("run_id") for run in runs]
    emit(session, document, names=names, table=lambda: show_rows(session, runs, STATE, empty="no run"))
    for run in runs:
        if run.get("note"):
            session.say(f"run {run.get('run_id')}: {clean(run['note'])}")


def _each(session: Session, run_ids: Sequence[int], ask: Callable[[Gateway, int], Document], *, wait: bool) -> int:
    """Do the same to several runs: one that cannot be stopped does not keep the others running."""
    answers: list[Document] = []
    failures: list[CommandFailed] = []
    with session.gateway() as gateway:
        for run_id in dict.fromkeys(run_ids):
            try:
                answers.append(ask(gateway, run_id))
            except CommandFailed as failure:
                failures.append(failure)
        if wait:
            ends = [wait_for(gateway, int(a["run_id"]), "ended", session.timeout_s)[0] for a in answers]
            notes = [{"note": a["note"]} if a.get("note") else {} for a in answers]
            answers = [{**end, **note} for end, note in zip(ends, notes, strict=True)]
    if answers:
        _show(session, answers)
        if not wait:
            session.say(f"next: crawlctl wait {answers[-1]['run_id']} --for ended")
    for told in failures[:-1]:
        session.say(f"crawlctl: {told}")
    if failures:
        raise failures[-1]
    return Exit.DONE

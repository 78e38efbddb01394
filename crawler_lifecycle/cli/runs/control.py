"""Verbs that change a run or wait for it: stop, force-stop, resume, look, wait."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli.output import Document
from crawler_lifecycle.cli.polling import Polling
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.runs.outcome import Goal, _show, gave_up, show_state, verdict
from crawler_lifecycle.cli.runs.texts import waiting_clause
from crawler_lifecycle.cli.session import Session, current, user
from crawler_lifecycle.domain.waiting import ageless

if TYPE_CHECKING:
    from crawler_lifecycle.cli.gateway import Gateway


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
            from crawler_lifecycle.cli.runs.watch import watch_run

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


# --- answers -------------------------------------------------------------------------------------------------------


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

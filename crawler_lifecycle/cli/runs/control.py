"""Verbs that change a run or wait for it: stop, force-stop, resume, look, wait."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli.output import Document
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.session import current, user
from crawler_lifecycle.cli.subjects import Goal, await_end, be_sure, each, show

from .texts import RUN

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway


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

    def ask(gateway: Gateway, run_id: int) -> Document:
        key = request_id or str(uuid.uuid4())
        return gateway.stop(run_id, force=force, reason=reason, request_id=key, requested_by=by or user())

    return each(RUN, (run, *runs), ask, wait=wait, then="wait {} --for ended")


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
    be_sure(RUN, (run, *runs), "everything that runs for", yes=yes)
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
            from .watch import watch_run

            return watch_run(session, gateway, run, attempt=int(answer.get("attempt") or 0))
        if wait:
            return await_end(RUN, gateway, run, after=answer)
    show(RUN, [answer])
    session.say(f"next: crawlctl wait {run} · crawlctl describe {run}")
    return Exit.DONE


def look(run: Annotated[int, Parameter(help="the run's id")], /) -> int:
    """Have the cluster asked about a run now, instead of at the next due look."""
    session = current()
    with session.gateway() as gateway:
        answer = gateway.look(run)
    show(RUN, [answer])
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
    with current().gateway() as gateway:
        return await_end(RUN, gateway, run, goal)

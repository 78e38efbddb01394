"""Lines about our task queues: whether somebody works on each, and what to start where nobody does."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.cli.doctor.clock import clock_line
from crawler_lifecycle.cli.doctor.line import Level, Line, counted
from crawler_lifecycle.compose import PLANS, ROLES
from crawler_lifecycle.domain import names
from crawler_lifecycle.temporal.server import Server
from crawler_lifecycle.temporal.task_queues import POLLED_S, Queue, Version

#: Work that waited longer than this was forgotten by somebody.
BACKLOG_AGE_S = 60.0
_PLANS_CURE = "crawlctl worker plans, with your modules in LIFECYCLE_PLANS__MODULES"
#: Queue -> role of the workers that serve it, and what does not go on without one of the role ``plans``.
_SERVED_BY = {**{queue: role for role, queue in ROLES.items()}, names.QUEUE_FUNCTIONS: PLANS}
_WAITING = {names.QUEUE_PLANS: "managers do not go on", names.QUEUE_FUNCTIONS: "functions of graphs are not called"}


async def check_queues(server: Server, unreachable: str) -> list[Line]:
    """A line for each task queue of ours. ``unreachable`` is the cure where the server does not answer."""
    queues = await server.task_queues([names.QUEUE_MAIN], list(_SERVED_BY))
    lines = []
    for queue in queues:
        if queue.problem is None:
            lines.append(queue_line(queue))
        else:
            text = f"{queue.name} ({queue.kind}) cannot be described: {queue.problem}"
            lines.append(Line("workers", "bad", text, unreachable))
    ahead_s = max(queue.ahead_s for queue in queues)
    return [*lines, clock_line("Temporal", ahead_s, 0.0)] if ahead_s > 0 else lines


def queue_line(queue: Queue) -> Line:
    """Whether somebody works on a task queue."""
    role = _SERVED_BY[queue.name]
    what = f"{queue.name} ({queue.kind})"
    waiting = f", {queue.backlog} waiting for {queue.backlog_age_s:.0f} s" if queue.backlog else ""
    ours = [one for one in queue.pollers if one.version == queue.current]
    number = sum(one.alive for one in ours)
    gone = min((one.seen_s for one in ours if not one.alive), default=None)
    served = [queue.current, *([queue.ramping] if queue.ramping else [])]
    others = [one.version for one in queue.pollers if one.alive and one.version not in served]
    if number == 0 and others:
        text = f"nobody of {_called(queue.current)}, which is current, polls {what}{waiting}; "
        text += f"{_counts(others)} and get no work"
        cure = f"start workers of {_called(queue.current)}, or make current what polls: {_make_current(queue, others)}"
        return Line("workers", "bad", text, cure)
    if number == 0:
        seen = f": last seen {gone:.0f} s ago" if gone is not None else ""
        if role == PLANS:
            # Many installations have none. Where something waits for one, it is in the queue.
            level: Level = "bad" if queue.backlog or gone is not None else "warn"
            text = f"no worker of the role plans polls {what}{seen}{waiting}: {_WAITING[queue.name]}"
            return Line("workers", level, text, f"{_PLANS_CURE}; not needed where nobody has code of their own")
        return Line("workers", "bad", f"nobody polls {what}{seen}{waiting}", f"crawlctl worker {role}")
    if queue.backlog and queue.backlog_age_s > BACKLOG_AGE_S:
        setting = "PLANS__FUNCTIONS" if queue.name == names.QUEUE_FUNCTIONS else "WORKER__THREADS"
        cure = f"start more workers (crawlctl worker {role}), or raise LIFECYCLE_{setting}"
        return Line("workers", "warn", f"{what}: {counted(number, 'poller')} cannot keep up{waiting}", cure)
    lost = f"; another one was last seen {gone:.0f} s ago" if gone is not None and gone < POLLED_S else ""
    spare = f"; {_counts(others)} and get no work" if others else ""
    return Line("workers", "ok", f"{what}: {number} polling{waiting}{lost}{spare}")


def _called(version: Version) -> str:
    return "workers without a version" if version is None else f"version {'.'.join(version)}"


def _counts(others: Sequence[Version]) -> str:
    return " and ".join(f"{others.count(one)} of {_called(one)} poll" for one in sorted(set(others), key=str))


def _make_current(queue: Queue, others: Sequence[Version]) -> str:
    version = others[0]
    which = "--unversioned" if version is None else f"--build-id {version[1]}"
    name = (version or queue.current or ("",))[0]
    return f"temporal worker deployment set-current-version --deployment-name {name} {which} --yes"

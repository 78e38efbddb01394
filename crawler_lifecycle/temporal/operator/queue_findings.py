"""Findings about task queues: a sentence about the workers of a queue, and the command to start
missing workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.plurals import count

from .task_queues import POLLED_S, Queue, Version

#: If work has been waiting for longer than this number of seconds, the workers cannot keep up.
BACKLOG_AGE_S = 60.0
_USER_CODE = "crawlctl worker user-code, with your modules in LIFECYCLE_USER_CODE__MODULES; "
_USER_CODE += "only needed for managers and functions of your own"
#: Queues that need no worker in many installations, each with the fix if a worker is needed.
_SELDOM = {
    names.QUEUE_USER_CODE: _USER_CODE,
    names.QUEUE_FUNCTIONS: _USER_CODE,
    names.QUEUE_WEBHOOKS: "crawlctl worker webhooks; only needed for webhooks",
}
_WAITING = {
    names.QUEUE_USER_CODE: "managers do not continue",
    names.QUEUE_FUNCTIONS: "functions of graphs are not called",
    names.QUEUE_WEBHOOKS: "webhooks are not delivered",
}


@dataclass(frozen=True, slots=True)
class QueueFinding:
    """The state of a queue as a sentence, and the fix."""

    level: Literal["ok", "warn", "bad"]
    text: str
    fix: str | None = None


def judged(queue: Queue, role: str, unreachable: str, *, told: bool = True) -> QueueFinding:
    """Return a finding about the workers of a queue.

    ``role`` is the role of the workers that serve the queue. ``unreachable`` is the fix if the
    server does not describe the queue. If ``told`` is true, the sentence states how much work is
    waiting.
    """
    what = f"{queue.name} ({queue.kind})"
    if queue.problem is not None:
        return QueueFinding("bad", f"{what} cannot be described: {queue.problem}", unreachable)
    waiting = (
        f", {queue.backlog} waiting for {queue.backlog_age_s:.0f} s" if told else ", work waits"
    )
    waiting = waiting if queue.backlog else ""
    ours = [poller for poller in queue.pollers if poller.version == queue.current]
    number = sum(our.alive for our in ours)
    gone = min((our.seen_s for our in ours if not our.alive), default=None)
    served = [queue.current, *([queue.ramping] if queue.ramping else [])]
    others = [
        poller.version for poller in queue.pollers if poller.alive and poller.version not in served
    ]
    if number == 0 and others:
        text = (
            f"no worker of the current version ({_called(queue.current)}) polls {what}{waiting}; "
        )
        text += f"{_counts(others)} and get no work"
        fix = f"start workers of {_called(queue.current)}, or run: {_make_current(queue, others)}"
        return QueueFinding("bad", text, fix)
    if number == 0:
        return _nobody(queue, role, what, waiting, gone)
    if queue.backlog and queue.backlog_age_s > BACKLOG_AGE_S:
        setting = (
            "USER_CODE__FUNCTIONS" if queue.name == names.QUEUE_FUNCTIONS else "WORKER__THREADS"
        )
        fix = f"start more workers (crawlctl worker {role}), or raise LIFECYCLE_{setting}"
        return QueueFinding(
            "warn", f"{what}: {count(number, 'poller')} cannot keep up{waiting}", fix
        )
    lost = (
        f"; another one was last seen {gone:.0f} s ago"
        if gone is not None and gone < POLLED_S
        else ""
    )
    spare = f"; {_counts(others)} and get no work" if others else ""
    return QueueFinding("ok", f"{what}: {number} polling{waiting}{lost}{spare}")


def _nobody(queue: Queue, role: str, what: str, waiting: str, gone: float | None) -> QueueFinding:
    seen = f": last seen {gone:.0f} s ago" if gone is not None else ""
    if queue.name not in _SELDOM:
        return QueueFinding(
            "bad", f"no worker polls {what}{seen}{waiting}", f"crawlctl worker {role}"
        )
    text = f"no worker with the {role} role polls {what}{seen}{waiting}: {_WAITING[queue.name]}"
    return QueueFinding(
        "bad" if queue.backlog or gone is not None else "warn", text, _SELDOM[queue.name]
    )


def _called(version: Version) -> str:
    return "workers without a version" if version is None else f"version {'.'.join(version)}"


def _counts(others: Sequence[Version]) -> str:
    return " and ".join(
        f"{others.count(other)} of {_called(other)} poll" for other in sorted(set(others), key=str)
    )


def _make_current(queue: Queue, others: Sequence[Version]) -> str:
    version = others[0]
    which = "--unversioned" if version is None else f"--build-id {version[1]}"
    name = (version or queue.current or ("",))[0]
    return f"temporal worker deployment set-current-version --deployment-name {name} {which} --yes"

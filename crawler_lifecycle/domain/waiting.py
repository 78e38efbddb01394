"""The sentence about the reason why a run is waiting, for the gateway, the command line and
Temporal's UI. The sentence uses only recorded data. A failed poll proves nothing about any task. So
after a failed poll, the sentence states that the cluster does not answer, for how long, and why. It
reports an overdue poll too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from crawler_lifecycle.domain.audits.overdue import overdue_before

from .bounds import moment
from .plurals import count
from .run import LIMIT_STOPS
from .task import ACTIVE

#: Prefixes of ``waiting_for`` that name the service that does not answer. The error follows the
#: prefix.
SCHEDULER_WAIT = "scheduler service: "
CLUSTER_WAIT = "cluster: "
#: Prefix of ``waiting_for`` while a task is waiting for its code. The task and the reason follow.
CODE_WAIT = "code: "
#: Prefix of ``waiting_for`` while the run is waiting in its pool's line.
SLOT_WAIT = "a slot in pool "
#: Prefix of ``waiting_for`` while the run is waiting for a slot of a site.
SITE_WAIT = "a slot of site "
#: Beginning of ``waiting_for`` while a run is polled less often than its schedule requires.
POLLS = "polls "
#: Beginning of a task's reason while no node of the cluster has capacity for it.
NO_ROOM = "No node has capacity for it"
#: Beginning of a task's reason while the task is waiting for its next try, and of a run's reason
#: while the run is waiting for the earliest of these tries.
RETRY = "retry "
RETRY_AT = "retrying at "
#: Advice if no worker starts the run, and the seconds after which the sentence contains this
#: advice.
ASK_DOCTOR = "; crawlctl doctor shows whether there is one"
UNTAKEN_S = 10
#: The character before and after a time that the web UI replaces by a duration.
MARK = "\x1f"
#: The maximum number of tasks that the sentence names.
NAMED_MAX = 5

#: Prefixes of errors that are about a row in our database, and not about the cluster.
_ROWS = ("run_history ", "task_history ", "task_observation ", "task_finding ")
_AGO = "{} ago"
_ENDED = ("COMPLETED", "FAILED")
_SPAN = re.compile(
    r"\b(for|since|ago|in) (\d+ (?:s|min|h|d)|\d\d\d\d-\S+)|\b\d+ (?:s|min|h|d) (ago)"
)
_STRETCHED = re.compile(rf"{POLLS}(\d{{1,6}}(?:\.\d)?) times their interval")
#: The position in the line of a pool, and the use of a site. Both change whenever a slot becomes
#: free.
_POSITION = re.compile(rf"({SLOT_WAIT}\S+) \([^)]*\)")
_IN_USE = re.compile(r"(?:\d+ of|at most) (\d+ tasks?)(?: in this project)?(?: \(runs? [^)]*\))?")


class Wait(StrEnum):
    """The kinds of things that a live run can wait for. A run waits for at most one thing at a
    time."""

    POOL = "pool"
    SITE = "site"
    CLUSTER = "cluster"
    SCHEDULER = "scheduler"
    RETRY = "retry"
    WORKER = "worker"
    START = "start"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Standing:
    """The recorded situation of a run. Without ``now``, sentences about it contain times instead of
    durations.
    """

    status: str
    now: datetime | None = None
    created_at: datetime | None = None
    """The time at which the current attempt was accepted."""
    owned: bool = True
    """True if a workflow owns the run."""
    waiting_for: str | None = None
    waiting_since: datetime | None = None
    line: str | None = None
    """The run's current position in the line of its pool (``position_in_line``) or of a site
    (``site_in_use``), which replaces the recorded reason. Of a run whose tasks execute, a site of
    its own that is closed.
    """
    look_error: str | None = None
    look_error_since: datetime | None = None
    next_look_at: datetime | None = None
    stop_at: datetime | None = None
    stop_by: str | None = None
    """The person or limit that stopped the run."""
    stop_force: bool = False
    stop_heard: bool = True
    """True if a workflow has begun to carry out the stop."""
    tasks: Mapping[str, int] | None = None
    """The number of tasks by status, or ``None`` if unknown."""
    unproved: Sequence[int] = ()
    """Indexes of active tasks, perhaps only of the first active tasks."""
    reason: str | None = None
    """The reason why one of the tasks is waiting on the cluster."""
    max_parallel: int | None = None
    moments: bool = False
    """True if each duration is written as its start time between two ``MARK`` characters. The web
    UI then computes the durations.
    """
    undelivered: Sequence[str] = field(default_factory=tuple)
    """If the run has ended, notes about deliveries that have not succeeded yet."""


def waiting(s: Standing) -> str | None:
    """Return the sentence, or ``None`` if the run is waiting only for its next planned poll."""
    if s.status in _ENDED:
        return "; ".join(s.undelivered) or None
    stretched = s.waiting_for if (s.waiting_for or "").startswith(POLLS) else None
    if stretched is not None:
        s = replace(s, waiting_for=None)
    parts = [_stop(s), _poll(s)]
    if s.stop_at is None and parts[1] is None:
        parts += [_start(s) or _capacity(s), stretched]
    return "; ".join(part for part in parts if part) or None


@dataclass(frozen=True, slots=True)
class InLine:
    """The position of a run in its pool's line."""

    pool: str
    in_use: int
    most: int | None
    urgent: int = 0
    """The number of tasks that come first because their runs in this pool are more urgent."""
    older: int = 0
    """The number of tasks of the same priority that come first: one task of each run that has
    waited longer than this run."""
    about_s: float | None = None
    """The expected seconds until the run gets its first slot, or ``None`` if unknown."""
    shut: bool = False
    """True if other pools reserve all slots, so that the run never gets a slot."""
    shared: bool = False
    """True if only runs in the reader's project are counted."""


def position_in_line(line: InLine) -> str:
    """Return the phrase about a run's position in its pool's line. Zero and unknown values are left
    out.
    """
    ahead = [
        f"{tasks} {word}"
        for tasks, word in ((line.urgent, "more urgent"), (line.older, "older"))
        if tasks
    ]
    come = "task comes" if line.urgent + line.older == 1 else "tasks come"
    most = "" if line.most is None else f" of {line.most}"
    counts = [
        f"{line.in_use}{most} in use" if line.in_use or line.most else "",
        f"{' and '.join(ahead)} {come} first" if ahead else "",
    ]
    parts = [
        "none is left for it: all are reserved for other pools" if line.shut else "",
        ("of this project " if line.shared and any(counts) else "")
        + "; ".join(filter(None, counts)),
        "" if line.about_s is None else f"about {span(max(line.about_s, 1))}",
    ]
    said = "; ".join(filter(None, parts))
    return f"{SLOT_WAIT}{line.pool}{f' ({said})' if said else ''}"


@dataclass(frozen=True, slots=True)
class SiteInUse:
    """The site for which a run waits."""

    site: str
    most: int | None
    """The maximum number of tasks at once."""
    tasks: int
    """The number of tasks of ``runs``."""
    runs: Sequence[int] = ()
    """The runs with tasks on the site, in order."""
    shared: bool = False
    """True if only runs in the reader's project are counted."""
    opens_at: datetime | None = None
    """The time at which the hours of the site begin; ``None`` within its hours."""
    closed_until: datetime | None = None
    closed_status: int | None = None
    """The status with which the site refused a request."""
    closed_by_run: int | None = None
    closed_by: str | None = None
    """The person who closed the site, with the reason."""
    probes: bool = False
    """True if the site was closed, and only one task may find out whether it answers again."""


def site_in_use(site: SiteInUse, now: datetime) -> str:
    """Return the phrase about the site for which a run waits.

    Example: ``shop.example: 2 of 2 tasks (runs 17 and 31); open from 22:00 UTC``.
    """
    run = "" if site.closed_by_run is None else f" (run {site.closed_by_run})"
    by = "" if site.closed_by is None else f" by {site.closed_by}"
    after = "" if site.closed_status is None else f" after {site.closed_status}"
    most = count(site.most or 0, "task")
    if site.probes:
        said = "one task probes whether it answers again"
    elif site.most is None:
        said = ""
    elif site.shared:
        said = f"at most {most}"
    else:
        said = f"{site.tasks} of {most}"
    if site.runs:
        said = said or count(site.tasks, "task")
        said += f"{' in this project' if site.shared else ''} ({_runs(site.runs)})"
    parts = [
        said,
        "" if site.opens_at is None else f"open from {_clock(site.opens_at, now)}",
        ""
        if site.closed_until is None
        else f"closed until {_clock(site.closed_until, now)}{by}{after}{run}",
    ]
    return f"{site.site}: {'; '.join(filter(None, parts)) or 'a slot is free'}"


def _runs(runs: Sequence[int]) -> str:
    """Return the numbers of the first runs: ``runs 17 and 31``."""
    *first, last = [str(run) for run in runs[:NAMED_MAX]]
    more = len(runs) - NAMED_MAX
    if more > 0:
        return f"runs {', '.join([*first, last])} and {more} more"
    return f"runs {', '.join(first)} and {last}" if first else f"run {last}"


def _clock(at: datetime, now: datetime) -> str:
    """Return a time of the next 24 hours without its day."""
    soon = at - now < timedelta(days=1)
    return f"{at:%H:%M} UTC" if soon else f"{at:%Y-%m-%d %H:%M} UTC"


def stretch_words(stretch: float) -> str | None:
    """Return a note about polls at longer intervals than planned, or ``None`` if no note is needed.
    ``stretch`` is the factor by which the intervals are longer than planned.
    """
    times = f"{stretch:.1f}".removesuffix(".0")
    return None if times == "1" else f"{POLLS}{times} times their interval"


def stretch_of(waiting_for: str | None) -> float:
    """Return the stretch in a note from ``stretch_words``, or 1 for any other string."""
    found = _STRETCHED.fullmatch(waiting_for or "")
    return float(found[1]) if found else 1.0


def retry_wait(at: datetime, reason: str) -> str:
    """Return the phrase about a run that is waiting for its next try. ``reason`` is the task's
    reason.
    """
    return f"{RETRY_AT}{at:%Y-%m-%dT%H:%M:%SZ} {reason.removeprefix(RETRY)}"


def ageless(sentence: str) -> str:
    """Return the sentence, omitting durations and positions, so that the text changes only if the
    reason changes.
    """
    return _SPAN.sub(r"\1\3", _IN_USE.sub(r"\1", _POSITION.sub(r"\1", sentence)))


def span(seconds: float) -> str:
    """Return a duration in its largest unit: ``40 s``, ``4 min``, ``3 h``, ``2 d``."""
    whole = max(0, int(seconds))
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= 2 * size or (size == 60 and whole >= size):
            return f"{whole // size} {name}"
    return f"{whole} s"


def _for(s: Standing, since: datetime | None, form: str = "for {}") -> str:
    if since is None:
        return ""
    if s.now is None:
        return f" since {since:%Y-%m-%dT%H:%M:%SZ}"
    age = f"{MARK}{since.isoformat()}{MARK}" if s.moments else span((s.now - since).total_seconds())
    return f" {form.format(age)}"


def _poll(s: Standing) -> str | None:
    """Return the reason why the current state of the run is unknown, or ``None`` if the state is
    known."""
    if s.look_error is not None and s.look_error.startswith(_ROWS):
        return f"polls have failed{_for(s, s.look_error_since)}: {s.look_error}"
    if s.look_error is not None:
        return f"the cluster has not answered{_for(s, s.look_error_since)}: {s.look_error}"
    if s.now is not None and s.next_look_at is not None and s.next_look_at < overdue_before(s.now):
        return (
            f"the poll that was due{_for(s, s.next_look_at, _AGO)} is missing: no worker takes "
            "it, or it hangs"
        )
    return None


def _stop(s: Standing) -> str | None:
    if s.stop_at is None:
        return None
    who = f" by {'the limit ' if s.stop_by in LIMIT_STOPS else ''}{s.stop_by}" if s.stop_by else ""
    what = f"{'forced stop' if s.stop_force else 'stop'} requested{who}{_for(s, s.stop_at, _AGO)}"
    if not s.stop_heard:
        return f"{what}: no workflow has acted on it yet"
    if s.tasks is None:
        return f"{what}: its tasks are not proved to have ended"
    active = sum(s.tasks.get(status, 0) for status in ACTIVE)
    if not active:
        queued = s.tasks.get("QUEUED", 0)
        return (
            f"{what}: {count(queued, 'task')} may still be created"
            if queued
            else f"{what}: the verdict is missing"
        )
    named = [str(index) for index in s.unproved[:NAMED_MAX]]
    which = f" (index {', '.join(named)}{' …' if active > len(named) else ''})" if named else ""
    return f"{what}: {count(active, 'task')}{which} not yet proved to have ended"


def _start(s: Standing) -> str | None:
    """Return the reason why the run does not start or its next tasks are not deployed, or
    ``None``.
    """
    if s.waiting_for is None:
        if s.status != "INITIALIZING":
            return None
        if not s.owned:
            late = (
                s.now is None
                or s.created_at is None
                or (s.now - s.created_at).total_seconds() >= UNTAKEN_S
            )
            return f"waiting for a worker{_for(s, s.created_at)}" + (ASK_DOCTOR if late else "")
        return "its first tasks are being deployed"
    since = _for(s, s.waiting_since)
    if s.waiting_for.startswith(SCHEDULER_WAIT):
        return (
            f"the scheduler service has accepted no deployment{since}: "
            f"{s.waiting_for.removeprefix(SCHEDULER_WAIT)}"
        )
    if s.waiting_for.startswith(CLUSTER_WAIT):
        return f"the cluster has not answered{since}: {s.waiting_for.removeprefix(CLUSTER_WAIT)}"
    if s.waiting_for.startswith(CODE_WAIT):
        task, _, why = s.waiting_for.removeprefix(CODE_WAIT).partition(": ")
        return f"the code of {task} has been missing{since}: {why}"
    queued = (s.tasks or {}).get("QUEUED", 0)
    if s.waiting_for.startswith(RETRY_AT):
        return _retry(s, queued)
    if s.status != "INITIALIZING" and s.tasks is not None and not queued:
        return None  # an earlier try recorded the reason, and no task is waiting now
    what = s.waiting_for.removeprefix("waiting: ")
    if what.startswith((SLOT_WAIT, SITE_WAIT)):
        what = s.line or what
    if s.status != "INITIALIZING":
        return f"{count(queued, 'task')} QUEUED{since}: {_wait(what)}" if queued else what
    return f"waiting for {what}{since}" if _is_noun(what) else f"waiting{since}: {what}"


def _is_noun(what: str) -> bool:
    """Return whether a reason is a noun, and not a sentence."""
    return what.startswith(("the ", "a ", "an "))


def _wait(what: str) -> str:
    return f"waiting for {what}" if _is_noun(what) else what


def _retry(s: Standing, queued: int) -> str | None:
    """Return the sentence about the next try. The sentence contains the remaining time before that
    try."""
    if s.tasks is not None and not queued:
        return None
    said, _, why = (s.waiting_for or "").removeprefix(RETRY_AT).partition(" ")
    if s.now is not None and not s.moments and (at := moment(said)) is not None:
        when = f"retrying in {span((at - s.now).total_seconds())}"
    else:
        when = f"{RETRY_AT}{said}"
    return f"{when} {why}" + (f"; {count(queued, 'task')} QUEUED in all" if queued > 1 else "")


def _capacity(s: Standing) -> str | None:
    """Return what the waiting tasks of a started run are waiting for, or ``None`` if no task is
    waiting."""
    if s.tasks is None:
        return None
    queued = s.tasks.get("QUEUED", 0)
    pending = s.tasks.get("PENDING", 0)
    active = sum(s.tasks.get(status, 0) for status in ACTIVE)
    parts = []
    if queued and s.max_parallel is not None and active >= s.max_parallel:
        parts.append(
            f"{count(queued, 'task')} QUEUED: at most {s.max_parallel} at once (max_parallel_tasks)"
        )
    elif queued and s.line is not None:
        parts.append(f"{count(queued, 'task')} QUEUED: {_wait(s.line)}")
    elif queued:
        parts.append(f"{count(queued, 'task')} QUEUED until the next poll")
    elif s.line is not None:
        parts.append(s.line)
    if pending:
        why = f": {s.reason.removeprefix('waiting: ')}" if s.reason else " on the cluster"
        parts.append(f"{count(pending, 'task')} PENDING{why}")
    return "; ".join(parts) or None

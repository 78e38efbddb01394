"""The oracle: what must hold whatever fails. It shares no code with the service.

It gets only evidence: rows read by SQL, the journals of the crawlers, the requests and their
answers, the times of the faults, the content of the archive, and what a sampler saw twice a second
in the record and in /proc. ``judge`` states in sentences what is wrong.
tests/soak/test_faults_oracle.py feeds it every kind of violation that it must find.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.faults.code_record import CodeRecord
from tools.soak.journal import Process, overlaps

Name = tuple[int, int, int]
#: The ways in which a status can be untrue: recorded as ended but alive, recorded as alive but
#: ended, and recorded as waiting but begun.
ALIVE, DEAD, WAITING = "ended but alive", "alive but dead", "waits but executes"
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "LOST")
WAITS, EXECUTES = ("QUEUED", "PENDING"), ("RUNNING", "STOPPING")
OVER = ("COMPLETED", "FAILED")
#: Without a fault, a record may be behind the processes for this long. The polls of runs in the
#: fault tests are 6 s apart.
LATE_S = 20.0
#: The same in a short test run, which a busy machine executes in parallel with much other work.
SHORT_LATE_S = 60.0
#: Jobs of managers have the usual polling schedule: their first poll is due after a minute, and
#: only wake-ups come sooner.
POLL_S = 60.0
#: The time after the end of a fault in which its effects may last: connections are restored, and
#: activities are retried.
AFTER_S = 15.0
#: After the last fault, the number of open things must become smaller within this time, until
#: nothing is open.
SETTLE_S = 90.0
#: A deployment that was in progress when a stop was accepted may begin within this time. Nothing
#: may begin later.
ON_ITS_WAY_S = 60.0
EVERY_S = 0.5
#: The polls of runs in the fault tests are 6 s apart, or up to ten times as far if an overloaded
#: machine stretches the interval and records this. If a fault must not hinder polls, a next poll
#: may be overdue by at most this many seconds.
INTERVAL_S, STRETCH_MAX, OVERDUE_S = 6.0, 10.0, 15.0
#: Faults during which nobody notices a change. The next poll finds such a change.
BLIND = "blind"


@dataclass(frozen=True)
class Fault:
    """What was done, when, and its real effect."""

    label: str
    """Its kind and whom it met: ``reset of database``."""
    began: float
    ended: float
    did: dict[str, float]
    """What was counted."""

    @property
    def happened(self) -> bool:
        return any(self.did.values())


@dataclass(frozen=True)
class Ask:
    """A request that was sent until somebody answered."""

    kind: str
    """``start``, ``stop`` or ``resume``."""
    key: str
    sent: float
    answered: float
    status: int | None
    run_id: int | None = None
    site: str = ""
    body: Any = None
    tries: int = 1
    answer: dict[str, Any] = field(default_factory=dict)
    """The body of the last answer."""

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True)
class Age:
    """The age of last polls at one moment, in seconds."""

    at: float
    oldest: float
    overdue: float
    """By how much the most overdue next poll exceeded the interval that the record shows for its
    run.
    """


@dataclass(frozen=True)
class Seen:
    """One sample: the recorded status of a task, and after that the state of its process."""

    at: float
    name: Name
    status: str
    process: str
    """``none``: it never began. ``lives``. ``over``."""
    seconds: float = EVERY_S
    """For how long it stands: since the sample before it."""

    @property
    def untrue(self) -> str:
        """Return how the status is untrue, or an empty text if it is true."""
        if self.status in ENDED and self.process == "lives":
            return "ended but lives"
        if self.status in EXECUTES and self.process == "over":
            return "executes but is over"
        if self.status in WAITS and self.process != "none":
            return "waits but has begun"
        return ""

    @property
    def column(self) -> str:
        """Return the column of the figure for this untrue status."""
        if self.status in ENDED:
            return ALIVE
        return DEAD if self.process == "over" else WAITING


@dataclass(frozen=True)
class Run:
    run_id: int
    key: str
    status: str
    outcome: str | None
    attempt: int
    verdict_at: float = 0.0
    """When the verdict was written; 0: it has none."""


@dataclass(frozen=True)
class Task:
    name: Name
    status: str
    outcome: str | None


@dataclass
class Evidence:
    """All evidence that the oracle gets."""

    runs: list[Run] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    exports: list[tuple[int, int, str, str | None]] = field(default_factory=list)
    """Run, attempt, status and address of each archive on record."""
    events: list[tuple[int, int]] = field(default_factory=list)
    """Run and attempt of each ``run.ended`` on record."""
    told: list[tuple[int, int]] = field(default_factory=list)
    """The same, as the sink got them; each at least once."""
    hooked: list[tuple[int, int]] = field(default_factory=list)
    """Of the webhook: what its receiver verified, in order."""
    deleted: dict[int, bool] = field(default_factory=dict)
    """Runs whose deletion is on record, and whether it has ended."""
    archives: dict[str, int] = field(default_factory=dict)
    """The bytes of the objects in the archive, by address."""
    processes: list[Process] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    """The samples that were untrue."""
    faults: list[Fault] = field(default_factory=list)
    kills: set[tuple[int, int]] = field(default_factory=set)
    """Crawlers that the fault tests killed or froze: process id and start time."""
    left: list[str] = field(default_factory=list)
    """What was still open so long after the faults."""
    wanted: dict[str, str] = field(default_factory=dict)
    """Jobs of accepted managers and steps of accepted graphs by their number: the one that ends
    before it begins.
    """
    schedule: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The time during which a schedule certainly existed, and its interval in seconds."""
    due: list[tuple[float, str, int | None]] = field(default_factory=list)
    """When it was due, by its lines: with what became of that, and the run that it began."""
    short: bool = False
    """A play of seconds beside much else: a fault may meet nobody, but not all of them; a record
    may be later.
    """
    late: float = 0.0
    """The number of seconds by which a record may be late, where one is given."""
    patience: float = 1.0
    """How many times as long as on a machine of its own everything may take; a short play measures
    it.
    """
    died: list[str] = field(default_factory=list)
    """Processes of ours that ended, and nobody had killed them."""
    prompt: str = ""
    """Faults with this in their name excuse no record that is late."""
    ages: list[Age] = field(default_factory=list)
    """Of each sample: how old last polls the fault tests' runs were that execute."""
    most_holders: Counter[str] = field(default_factory=Counter)
    """The most recorded tasks that held a slot of a site at once, of all samples."""
    blocks: list[tuple[str, str | None, int | None]] = field(default_factory=list)
    """Site, person and run of each recorded closing and opening of a site."""
    left_at_sites: list[str] = field(default_factory=list)
    """What was open at sites after everything had ended."""
    code: CodeRecord = field(default_factory=CodeRecord)
    """What is recorded about deployed code."""
    lost: list[float] = field(default_factory=list)
    """When what was accepted and has no true end on record was last heard of."""
    doubled: list[float] = field(default_factory=list)
    """When something began to execute once more."""

    def label(self, at: float) -> str:
        """Return the fault to whose time a moment belongs: the last fault that began before the
        moment and whose effects may still last.
        """
        found = [one.label for one in self.faults if one.began <= at <= one.ended + AFTER_S]
        return found[-1] if found else "calm"

    def must_be_prompt(self, fault: Fault) -> bool:
        """Return whether records may be as late during this fault as without a fault, but not
        later.
        """
        return bool(self.prompt) and self.prompt in fault.label

    def disturbed(self, since: float, until: float, for_records: bool = False) -> float:
        """Return how many seconds of this time belong to a fault, or to a fault that excuses
        ``for_records``, or to the time after it in which its effects may last.
        """
        excuses = [one for one in self.faults if not (for_records and self.must_be_prompt(one))]
        spans, last, total = sorted((one.began, one.ended + AFTER_S) for one in excuses), since, 0.0
        for begin, end in spans:
            begin, end = max(begin, last), min(end, until)
            if end > begin:
                total, last = total + end - begin, end
        return total

    def forgotten(self, since: float, until: float | None = None) -> bool:
        """Return whether data that was written then may be lost, because a copy of the record from
        before was restored.

        Nothing else may be lost.
        """
        backs = [one for one in self.faults if one.label == "restore of database"]
        return any(one.began <= (until or since) and since <= one.ended for one in backs)

    def bound(self, kind: str) -> list[Ask]:
        """Return the requests that were accepted and not lost by a restore."""
        return [
            a
            for a in self.asks
            if a.kind == kind and a.accepted and not self.forgotten(a.sent, a.answered)
        ]

    def disk_full(self, since: float, until: float) -> bool:
        return any(
            o.label.startswith("disk") and o.began <= until and o.ended + 3 >= since
            for o in self.faults
        )


def judge(evidence: Evidence) -> list[str]:
    """Return every violation, as a sentence."""
    return [
        *_accepted(evidence),
        *_once(evidence),
        *_as_told(evidence),
        *statuses(evidence),
        *_stops(evidence),
        *_delivered(evidence),
        *(
            f"{SETTLE_S * evidence.patience:.0f} s without progress after the faults: {one}"
            for one in evidence.left
        ),
        *_planned(evidence),
        *_polled_at(evidence),
        *evidence.died,
    ]


def statuses(evidence: Evidence) -> list[str]:
    """Return the violations about statuses alone, and about faults without an effect."""
    idle = [one for one in evidence.faults if not one.happened]
    told = not evidence.short or len(idle) == len(evidence.faults)
    return [
        *_true(evidence),
        *(f"the fault {one.label} did nothing: {one.did}" for one in idle if told),
    ]


def _accepted(e: Evidence) -> Iterator[str]:
    """Check that what was accepted is recorded once, and has an end."""
    keys = Counter(run.key for run in e.runs)
    yield from (f"{times} runs have the key {key}" for key, times in keys.items() if times > 1)
    for ask in e.bound("start"):
        if not keys[ask.key]:
            yield f"the start {ask.key} was accepted ({ask.status}) and is not on record"
    for run in e.runs:
        if run.status not in OVER:
            yield f"run {run.run_id} never ended: {run.status}"
    for task in e.tasks:
        if task.status not in ENDED:
            yield f"task {task.name} never ended: {task.status}"


def _once(e: Evidence) -> Iterator[str]:
    """Check that each recorded task executed once for its attempt, that no index executed twice at
    a time, and that nothing executed without a record.
    """
    rows, ran = Counter(task.name for task in e.tasks), Counter(one.name for one in e.processes)
    yield from (
        f"task {name} is on record {times} times" for name, times in rows.items() if times > 1
    )
    yield from (f"task {name} executed {times} times" for name, times in ran.items() if times > 1)
    unknown = {one.name for one in e.processes if not e.forgotten(one.begin)} - rows.keys()
    yield from (f"task {name} executed and is not on record" for name in unknown)
    for task in e.tasks:
        if task.status == "SUCCEEDED" and not ran[task.name]:
            yield f"task {task.name} succeeded, and no process of it ever began"
    indexes: dict[tuple[int, int], list[Process]] = defaultdict(list)
    for one in e.processes:
        indexes[one.run_id, one.index].append(one)
    good = {task.name for task in e.tasks if task.status == "SUCCEEDED"}
    for index, processes in indexes.items():
        yield from (
            f"index {index} executed twice at the same time: {a}; {b}"
            for a, b in overlaps(processes)
        )
        for one in processes:
            if any(other.name in good and other.attempt < one.attempt for other in processes):
                yield f"index {index} had succeeded and was executed again: {one}"


def _as_told(e: Evidence) -> Iterator[str]:
    """Check that an undisturbed end is the end that the crawler reported."""
    yield from (text for _, text in _told_otherwise(e))


def _told_otherwise(e: Evidence) -> Iterator[tuple[Process, str]]:
    """Yield each process whose task ended differently from its own report, with a sentence."""
    ends = {task.name: task for task in e.tasks}
    for one in e.processes:
        task = ends.get(one.name)
        if (
            task is None
            or one.end is None
            or one.run_id in e.deleted
            or (one.pid, one.start) in e.kills
            or e.disk_full(one.begin, one.last)
        ):
            continue
        crossed = any(
            a.kind == "stop" and a.sent - 3 < one.last < a.answered + 3 * e.patience
            for a in e.asks
            if a.run_id == one.run_id
        )
        # A forced stop may kill a process between its last report and its exit.
        if crossed and task.status == "CANCELLED":
            continue
        finished = one.end.get("code") == 0 and one.end.get("reason") == "finished"
        if finished and task.status != "SUCCEEDED":
            yield (
                one,
                f"task {one.name} reported that it finished and is {task.status}, "
                f"{task.outcome}: {one}",
            )
        if not finished and not one.signals and task.status == "SUCCEEDED":
            yield one, f"task {one.name} reported that it failed and is {task.status}: {one}"


def _true(e: Evidence) -> Iterator[str]:
    """Check that no status reports the end of a living process, and that no status is behind for
    longer than polls take, except during faults.
    """
    stretches: dict[tuple[Name, str], list[float]] = defaultdict(list)
    slow = {one.name for one in e.processes if one.args.get("number", "").startswith("m")}
    for seen in e.seen:
        stretches[seen.name, seen.untrue].append(seen.at)
    for (name, how), moments in stretches.items():
        if how == "ended but lives":
            yield f"task {name} {how}, seen {len(moments)} times from {moments[0]:.1f} on"
            continue
        began = last = moments[0]
        longest, when = 0.0, began
        for at in [*moments[1:], float("inf")]:
            # Nobody can read a database that is down, so a gap that faults fill does not count.
            if at - last > 4 * EVERY_S and e.disturbed(last, at, True) < at - last - EVERY_S:
                longest, when = max(
                    (longest, when), (last - began - e.disturbed(began, last, True), began)
                )
                began = at
            last = at
        allowed = (e.late or (SHORT_LATE_S if e.short else LATE_S)) * e.patience + (
            POLL_S if name in slow else 0
        )
        if e.label(when).startswith(BLIND):
            allowed += INTERVAL_S * STRETCH_MAX + OVERDUE_S
        if longest > allowed:
            yield f"task {name} {how} for {longest:.0f} s without a fault, from {when:.1f} on"


def _stops(e: Evidence) -> Iterator[str]:
    """Check that an accepted stop ends its run: nothing begins after the stop, and processes that
    received it are recorded as stopped.
    """
    ends = {task.name: task for task in e.tasks}
    for stop in e.bound("stop"):
        if stop.status != 202:
            continue
        # After a resume that may have been received, the stop no longer counts.
        resumes = [
            a.sent
            for a in e.asks
            if a.kind == "resume" and a.run_id == stop.run_id and a.answered > stop.sent
        ]
        until = min(resumes, default=float("inf"))
        for one in e.processes:
            if one.run_id != stop.run_id:
                continue
            if (
                stop.answered + ON_ITS_WAY_S * e.patience + e.disturbed(stop.answered, one.begin)
                < one.begin
                < until
            ):
                yield (
                    f"run {one.run_id} was stopped at {stop.answered:.1f}, and this began after "
                    f"it: {one}"
                )
            task = ends.get(one.name)
            end = one.end if one.end and one.end.get("reason") == "shutdown" else None
            heard = (
                end is not None
                and stop.answered < end["at"] < until
                and not e.disk_full(one.begin, one.last)
            )
            if (
                heard
                and task
                and task.status not in ("CANCELLED", "SUCCEEDED")
                and one.begin < stop.sent
            ):
                yield (
                    f"task {one.name} was stopped after an accepted stop and is {task.status}, "
                    f"{task.outcome}"
                )
    for one in e.processes:
        if len(one.signals) > 1:
            yield f"{one} got {len(one.signals)} stop signals"


def _delivered(e: Evidence) -> Iterator[str]:
    """Check that each ended run has its event once for each verdict, and one existing archive."""
    exported, events = Counter(row[:2] for row in e.exports), Counter(e.events)
    yield from (
        f"the export {name} is on record {times} times"
        for name, times in exported.items()
        if times > 1
    )
    yield from (
        f"the event {name} is on record {times} times"
        for name, times in events.items()
        if times > 1
    )
    told, hook = set(e.told), [ask.answered for ask in e.bound("webhook")]
    first = list(dict.fromkeys(e.hooked))
    for run_id, attempt in first:
        if (run_id, attempt + 1) in first[: first.index((run_id, attempt))]:
            yield f"the webhook was notified of attempt {attempt} of run {run_id} after the next one"
    began = {(ask.run_id, ask.sent > hook[0]) for ask in e.asks if ask.kind == "start" and hook}
    for run in e.runs:
        if run.status in OVER and run.run_id not in e.deleted:
            if (run.run_id, True) in began and (run.run_id, run.attempt) not in first:
                yield f"the webhook was never notified of the end of run {(run.run_id, run.attempt)}"
            name = (run.run_id, run.attempt)
            if not events[name]:
                yield f"run {name} ended without an event"
            elif name not in told:
                yield f"the event of run {name} is on record and was never delivered"
            if not exported[name]:
                yield f"run {name} ended without an export"
    yield from (
        f"the deletion of run {run_id} never ended"
        for run_id, ended in e.deleted.items()
        if not ended
    )
    for ask in e.bound("delete"):
        if ask.run_id not in e.deleted:
            yield f"the deletion of run {ask.run_id} was accepted and is not on record"
    # It is unknown.
    gone = {a.run_id for a in e.asks if a.kind == "delete"} - {a.run_id for a in e.bound("delete")}
    for run_id, attempt, status, url in e.exports:
        if run_id in e.deleted and e.archives.get(url or ""):
            yield f"run {run_id} was deleted, and its archive still exists at {url}"
        if run_id in e.deleted or run_id in gone or status == "empty":
            continue
        if status != "exported" or not e.archives.get(url or ""):
            yield f"the export of run {(run_id, attempt)} is {status}, and nothing exists at {url}"


def _planned(e: Evidence) -> Iterator[str]:
    """Check that each job and step succeeded once, in order, and that each due time has one row and
    started what that row says.
    """
    by_number: dict[str, list[Process]] = defaultdict(list)
    for one in e.processes:
        by_number[one.args.get("number", "")].append(one)
    user_code = [
        a
        for a in e.asks
        if a.kind in ("manager", "jobs", "graph") and e.forgotten(a.sent, a.answered)
    ]
    gone = {ask.key.split("-")[1] for ask in user_code}
    for number, before in e.wanted.items():
        mine = by_number[number]
        good = [one for one in mine if one.end and one.end.get("reason") == "finished"]
        # The process that began it may not know this, and begins it again.
        if any(e.forgotten(one.begin, one.last) for one in mine):
            good = good[-1:]
        if not good and number[1:].split("-")[0] in gone:
            continue
        broken = any(
            (one.pid, one.start) in e.kills or e.disk_full(one.begin, one.last) for one in mine
        )
        if len(good) > 1 or not (good or broken or before):
            yield f"job {number} succeeded {len(good)} times: {[str(one) for one in mine]}"
        ended = [one.last for one in by_number[before] if before and one.end]
        if before and mine and not (ended and min(ended) <= mine[0].begin):
            yield f"step {number} began before {before} had ended: {mine[0]}"
    since, until, every = e.schedule
    if every:
        lines, runs = Counter(round(at) for at, _, _ in e.due), {run.run_id for run in e.runs}
        first = int(since // every + 1)
        for due in (round(n * every) for n in range(first, int((until - e.patience) // every) + 1)):
            if lines[due] != 1 and not (lines[due] == 0 and e.forgotten(due, due + AFTER_S)):
                yield f"the schedule was due at {due}, and has {lines[due]} lines"
        for at, decision, target in e.due:
            if (decision == "started") != (target in runs):
                yield f"the line of {at} says {decision}, and its run is {target}"


def _polled_at(e: Evidence) -> Iterator[str]:
    """Check that faults that must not hinder polls leave no run of the fault tests without a poll
    for longer than this.
    """
    for fault in filter(e.must_be_prompt, e.faults):
        # The last poll before the fault may be as old as the interval. If it was old for another
        # reason, that reason has its own fault.
        since = fault.began + INTERVAL_S + OVERDUE_S
        ages = [age for age in e.ages if since <= age.at <= fault.ended]
        overdue = max((age.overdue for age in ages), default=0.0)
        if overdue > OVERDUE_S * e.patience:
            yield (
                f"in the time of {fault.label} the next poll of a run was overdue by "
                f"{overdue:.0f} s"
            )
        oldest = max((age.oldest for age in ages), default=0.0)
        if oldest > (INTERVAL_S * STRETCH_MAX + OVERDUE_S) * e.patience:
            yield f"in the time of {fault.label} the last poll of a run was {oldest:.0f} s old"


def lost(e: Evidence) -> list[float]:
    """Return the last moments of what was accepted and has no true end on record: starts, and
    recorded tasks.
    """
    keys = {run.key for run in e.runs}
    found = [a.answered for a in e.asks if a.kind == "start" and a.accepted and a.key not in keys]
    last = {one.name: one.last for one in e.processes}
    begun = {ask.run_id: ask.answered for ask in e.asks if ask.kind == "start"}
    tasks = {
        t.name: last.get(t.name, begun.get(t.name[0], 0.0))
        for t in e.tasks
        if t.status not in ENDED
    }
    tasks |= {one.name: one.last for one, _ in _told_otherwise(e)}
    return found + list(tasks.values())


def doubled(e: Evidence) -> list[float]:
    """Yield the times when a task began again, when an index began while it executed, or when an
    index that had succeeded began.
    """
    good = {task.name for task in e.tasks if task.status == "SUCCEEDED"}
    before: dict[tuple[int, int], list[Process]] = defaultdict(list)
    found = []
    for one in sorted(e.processes, key=lambda process: process.begin):
        earlier = before[one.run_id, one.index]
        if any(
            other.name == one.name or other.last > one.begin or other.name in good
            for other in earlier
        ):
            found.append(one.begin)
        earlier.append(one)
    return found


def verdicts(e: Evidence) -> dict[str, list[float]]:
    """Return, for each fault that must not hinder records, how long after its end runs had the
    verdicts that waited for it.
    """
    last: dict[int, float] = defaultdict(float)
    for one in e.processes:
        last[one.run_id] = max(last[one.run_id], one.last)
    return {
        fault.label: [
            run.verdict_at - fault.ended
            for run in e.runs
            if fault.began < last[run.run_id] < fault.ended < run.verdict_at
        ]
        for fault in filter(e.must_be_prompt, e.faults)
    }


Figure = dict[str, dict[str, float]]


def figure(e: Evidence) -> Figure:
    """Return for each fault the tasks that began or ended in its time, the seconds of untrue
    statuses and the tasks of each kind, what was lost or doubled, the longest time for which one
    status was untrue, and the age of the oldest last poll.
    """
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in e.processes:
        for label in {e.label(one.begin), e.label(one.last)}:
            found[label]["tasks"] += 1
    whom: dict[tuple[str, str, Name], float] = defaultdict(float)
    for seen in e.seen:
        whom[e.label(seen.at), seen.column, seen.name] += seen.seconds
    for (label, column, _), seconds in whom.items():
        row = found[label]
        row["untrue"] += seconds
        row[column] += seconds
        row[f"{column}, tasks"] += 1
        row["longest"] = max(row["longest"], seconds)
    for column, moments in (("lost", e.lost), ("doubled", e.doubled)):
        for at in moments:
            found[e.label(at)][column] += 1
    for age in e.ages:
        row = found[e.label(age.at)]
        row["oldest poll"] = max(row["oldest poll"], age.oldest)
    return {label: dict(row) for label, row in found.items()}


def per_thousand(row: dict[str, float]) -> float:
    """Return the seconds of untrue statuses for 1,000 tasks."""
    return 1000 * row.get("untrue", 0.0) / row["tasks"] if row.get("tasks") else 0.0

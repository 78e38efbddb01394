"""The invariants, which compare what the service reports about a run with the journals of its
processes and of the soak.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from crawler_lifecycle.domain.resources import parse_memory
from crawler_lifecycle.domain.run import RunStatus, run_may_become
from crawler_lifecycle.domain.task import TaskStatus, task_may_become
from tests.e2e.harness import TERMINAL, Row
from tools.soak.journal import Ask, Deeds, Kill, Process, clock, overlaps
from tools.soak.run_records import RunRecord, stamp
from tools.soak.truth import End, Era, Stops, allowed, never_executed, stops_at, verdicts

#: The allowed difference between a journal line and a commit on one machine, both by its clock.
CLOCK_S = 0.05
#: The seconds after the last line of the crawler within which a runner writes its last data.
DISK_S = 3.0
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "LOST")
#: Corrections for events without the knowledge of the service, which need somebody who caused the
#: event.
BEHIND_OUR_BACK = ("killed", "vanished", "never_existed", "not_ours")
#: Corrections for errors of the service itself. Nothing in a plan justifies such a correction.
NEVER = ("still_alive", "late_evidence", "not_ours")
#: Ends after which the usual policy retries, and how often.
TRIED_AGAIN, TRIES_MAX = ("interrupted", "evicted", "lost"), 3
OOM, MIB = "killed by oom", 2**20


@dataclass
class Case:
    """One run, with everything that is known about it."""

    number: int
    record: RunRecord
    processes: list[Process]
    deeds: Deeds
    request: Row

    def of(self, task: Row) -> list[Process]:
        name = (self.record.run_id, task["task_index"], task["attempt"])
        return [process for process in self.processes if process.name == name]

    def kills(self, task: Row) -> list[Kill]:
        found = self.deeds.kills_of((self.record.run_id, task["task_index"], task["attempt"]))
        for process in self.of(task):
            away = [
                since
                for since, until in self.deeds.hidden
                if since - 1 < process.last < until + DISK_S
            ]
            found += [Kill(process.name, "disk", since) for since in away]
        return found

    def stops(self, at: float, begun: float | None = None) -> Stops:
        """Return the stops that are in force at this moment, for a task that began then."""
        since, former = max(
            era for era in self.record.eras() if era[0] <= (begun if begun is not None else at)
        )
        asks, escalates = (
            self.deeds.of(self.number, "stop", "cancel"),
            "force_stop_after_s" in self.request["limits"],
        )
        return stops_at(at, asks, Era(since, former), self.limit(at), escalates=escalates)

    @property
    def first_memory(self) -> int | None:
        """Return the memory of first tries in bytes, or ``None`` if their memory has no limit."""
        return parse_memory(self.request.get("resources", {}).get("memory"))

    def starves(self, task: Row, process: Process) -> bool:
        """Return whether the crawler needs more memory than its try had. Its other memory is small."""
        has = parse_memory(task.get("memory")) or self.first_memory
        return has is not None and int(process.args.get("needs", 0)) * MIB >= has

    def limit(self, at: float) -> str | None:
        """Return ``timed_out`` if the run may have reached its time limit by then."""
        seconds = self.request["limits"].get("run_timeout_s")
        began = [process.begin for process in self.processes]
        return "timed_out" if seconds and began and at + 5 > min(began) + seconds else None


def check(case: Case) -> Iterator[str]:
    """Return every violation of this run, as a sentence."""
    yield from _executions(case)
    yield from _tasks(case)
    stopped = (
        bool(case.deeds.of(case.number, "stop", "cancel"))
        or "run_timeout_s" in case.request["limits"]
    )
    yield from tries(
        case.record.tasks,
        over=case.record.ended and not stopped,
        hungry=case.first_memory is not None,
    )
    if case.first_memory is not None:
        policy = case.request["retries"]
        most = parse_memory(policy["memory_cap"]) or 0
        yield from growth(case.record.tasks, case.first_memory, policy["memory_factor"], most)
    yield from _verdict(case)
    yield from _chains(case)
    yield from _nothing_after_the_end(case)
    yield from _corrections(case)
    yield from _requests(case)
    yield from _counts(case)


# --- what executed --------------------------------------------------------------------------------


def _executions(case: Case) -> Iterator[str]:
    by_index: dict[int, list[Process]] = {}
    for process in case.processes:
        by_index.setdefault(process.index, []).append(process)
        if len(process.signals) > 1:
            yield f"{process} got {len(process.signals)} stop signals"
    for index, processes in by_index.items():
        for one, other in overlaps(processes):
            yield f"index {index} executed twice at the same time: {one}; {other}"
        names = [process.name for process in processes]
        for name in {name for name in names if names.count(name) > 1}:
            yield f"task {name} was executed {names.count(name)} times"
        yield from _again_after_success(case, index, processes)
    known = {(task["task_index"], task["attempt"]) for task in case.record.tasks}
    for process in case.processes:
        # A task leaves no trace if nobody got the answer to its deployment and its folder was
        # removed before a poll.
        wiped = any(kill.whom == "folder" for kill in case.deeds.kills_of(process.name))
        if (process.index, process.attempt) not in known and not wiped:
            yield f"no row knows of {process}"


def _again_after_success(case: Case, index: int, processes: list[Process]) -> Iterator[str]:
    reruns = [
        ask.sent for ask in case.deeds.of(case.number, "resume") if ask.force and ask.answer != "no"
    ]
    for task in case.record.tasks:
        if task["task_index"] != index or task["status"] != "SUCCEEDED":
            continue
        later = [p for p in processes if p.attempt > task["attempt"]]
        for process in later:
            if not any(sent < process.begin for sent in reruns):
                yield (
                    f"index {index} succeeded in attempt {task['attempt']} and was executed "
                    f"again: {process}"
                )


# --- what is recorded of tasks --------------------------------------------------------------------


def _tasks(case: Case) -> Iterator[str]:
    for task in case.record.tasks:
        name = f"task {task['task_index']}/{task['attempt']}"
        if task["status"] not in ENDED:
            if case.record.ended:
                yield f"{name} is {task['status']} and the run has ended"
            continue
        end: End = (task["status"], str(task["outcome"]))
        processes = case.of(task)
        if not processes:
            begun = min(
                (row["committed_at"] for row in case.record.of_task(task["task_id"])), default=None
            )
            right = never_executed(case.kills(task), case.stops(task["ended_at"] or 0.0, begun))
            if end not in right:
                yield f"{name} is {end} and never executed; expected {right}"
            continue
        process = processes[0]
        stops = case.stops(process.last, process.begin)
        right = allowed(process, case.kills(task), stops, starves=case.starves(task, process))
        if end not in right:
            kills = _told(case.kills(task))
            yield (f"{name} is {end}, expected {sorted(right)} ({stops}): {process}; kills {kills}")
        yield from _numbers(task, process, case)


def _numbers(task: Row, process: Process, case: Case) -> Iterator[str]:
    name = f"task {task['task_index']}/{task['attempt']}"
    if task["ended_at"] is not None and task["ended_at"] < process.last - CLOCK_S:
        yield (
            f"{name} is recorded as ended at {stamp(task['ended_at'])} and executed until "
            f"{clock(process.last)}"
        )
    end = process.end
    if end is None or case.kills(task) or task["status"] == "LOST":
        return
    if end.get("pages") is not None and task["pages"] != end["pages"]:
        yield f"{name} counted {end['pages']} pages, on record are {task['pages']}"


def _told(kills: list[Kill]) -> str:
    return ", ".join(f"{kill.whom} at {clock(kill.at)}" for kill in kills) or "none"


def _verdict(case: Case) -> Iterator[str]:
    record = case.record
    if not record.ended:
        return
    ends = [(task["status"], str(task["outcome"])) for task in record.current]
    if not ends or any(status not in ENDED for status, _ in ends):
        return
    verdict = record.ends()[-1]
    asks = case.deeds.of(case.number, "stop", "cancel")
    since, former = record.eras()[-1]
    stops = stops_at(verdict, asks, Era(since, former))
    limit = case.limit(verdict)
    right = verdicts(ends, stops, limit)
    found = (record.run["status"], str(record.run["outcome"]))
    if found not in right:
        yield f"the run is {found} over {ends}, expected {right} ({stops})"


def tries(tasks: list[Row], *, over: bool, hungry: bool = False) -> Iterator[str]:
    """Check that each further try follows an end after which the policy retries.

    If the run is over, each such end has a try, or the reason why there is none. With ``hungry``,
    the policy also retries after a lack of memory.
    """
    again = {*TRIED_AGAIN, *([OOM] if hungry else [])}
    by_name = {(task["task_index"], task["attempt"]): task for task in tasks}
    if len(by_name) < len(tasks):
        yield f"of {len(tasks)} tries only {len(by_name)} have names of their own"
    for (index, attempt), task in by_name.items():
        before = by_name.get((index, attempt - 1))
        same = before is not None and before["run_attempt"] == task["run_attempt"]
        if task["retry"] or same:
            # A task that stayed alive while its run was taken over has the former attempt, and its
            # next try has the new attempt.
            right = before is not None and before["superseded_by"] == task["task_id"]
            right = (
                right
                and before["run_attempt"] <= task["run_attempt"]
                and task["retry"] == before["retry"] + 1
            )
            if not right or before["outcome"] not in again:
                yield f"{index}/{attempt} is retry {task['retry']} after {before}"
        if task["retry"] > TRIES_MAX:
            yield f"{index}/{attempt} is retry {task['retry']} of {TRIES_MAX}"
        decided = task["superseded_by"] is not None or task["retry_note"] is not None
        if over and task["outcome"] in again and not decided:
            yield (
                f"{index}/{attempt} ended by {task['outcome']}: it was not tried again, and "
                "nobody says why"
            )


def growth(tasks: list[Row], first: int, factor: float, most: int) -> Iterator[str]:
    """Check that a try after an end for lack of memory has more memory by the factor, up to the
    maximum, and that any other try has the same memory.
    """
    by_next = {task["superseded_by"]: task for task in tasks if task["superseded_by"] is not None}
    for task in tasks:
        before, has = by_next.get(task["task_id"]), parse_memory(task.get("memory")) or first
        if not task["retry"] or before is None:
            continue
        had = parse_memory(before.get("memory")) or first
        right = min(most, math.ceil(had * factor / MIB) * MIB) if before["outcome"] == OOM else had
        if has != right or (before["outcome"] == OOM and had >= most):
            name = f"{task['task_index']}/{task['attempt']}"
            how = f"after {had // MIB} and {before['outcome']}"
            yield f"{name} has {has // MIB} MiB {how}, expected {right // MIB}"


# --- the ledger -----------------------------------------------------------------------------------


def _chains(case: Case) -> Iterator[str]:
    record = case.record
    for task in record.tasks:
        rows = record.of_task(task["task_id"])
        if rows and rows[0]["source"] == "retry":  # The first row of a task records its creation.
            rows = rows[1:]
        yield from _chain(
            f"task {task['task_index']}/{task['attempt']}", rows, "QUEUED", task["status"]
        )
        for row in rows:
            before = TaskStatus(row["from_status"] or "QUEUED")
            if not task_may_become(before, TaskStatus(row["to_status"])):
                yield (
                    f"task {task['task_index']}: {row['from_status']} cannot become "
                    f"{row['to_status']}"
                )
    rows = record.of_task(None)
    yield from _chain("the run", rows, None, record.run["status"])
    for row in rows:
        before, after = row["from_status"], row["to_status"]
        if before is None:
            continue
        again = after in ("INITIALIZING", "STOPPING") and row["source"] in ("resume", "sweep")
        if not again and not run_may_become(RunStatus(before), RunStatus(after)):
            yield f"the run: {before} cannot become {after}, at {stamp(row['committed_at'])}"
        if before in TERMINAL and after != "INITIALIZING":
            yield f"the run: {before} became {after}, at {stamp(row['committed_at'])}"
    times = [row["committed_at"] for row in record.transitions]
    if times != sorted(times):
        yield "commit times of the run's transitions do not grow"
    for row in record.transitions:
        if row["lag_ms"] is not None and row["lag_ms"] < 0:
            yield f"a lag of {row['lag_ms']} ms"


def _chain(what: str, rows: list[Row], first: str | None, last: str) -> Iterator[str]:
    believed = first
    for row in rows:
        if row["from_status"] != believed:
            yield f"{what}: a transition from {row['from_status']} where {believed} was on record"
        believed = row["to_status"]
    if believed != last:
        yield f"{what}: the transitions lead to {believed}, the row says {last}"


def _nothing_after_the_end(case: Case) -> Iterator[str]:
    record = case.record
    for task in record.tasks:
        ends = [
            row["committed_at"]
            for row in record.of_task(task["task_id"])
            if row["to_status"] in ENDED
        ]
        for process in case.of(task):
            if ends and process.last > ends[0] + CLOCK_S:
                yield f"recorded as ended at {clock(ends[0])}, and executes: {process}"
    spans, open_end = [], None
    for row in record.of_task(None):
        if row["to_status"] in TERMINAL:
            open_end = row["committed_at"]
        elif open_end is not None:
            spans.append((open_end, row["committed_at"]))
            open_end = None
    if open_end is not None:
        spans.append((open_end, float("inf")))
    for begin, end in spans:
        for process in case.processes:
            if process.last > begin + CLOCK_S and process.begin < end - CLOCK_S:
                yield f"the run had ended from {clock(begin)} on, and this executed: {process}"


def _corrections(case: Case) -> Iterator[str]:
    record = case.record
    for row in record.corrections:
        task = next((task for task in record.tasks if task["task_id"] == row["task_id"]), None)
        if row["kind"] in NEVER:
            yield f"a correction {row['kind']}: {row}"
        if row["lag_ms"] is not None and row["lag_ms"] < 0:
            yield f"a correction with a lag of {row['lag_ms']} ms"
        if row["kind"] in BEHIND_OUR_BACK and task is not None:
            own = any(
                p.lost is not None or (p.end or {}).get("signal") is not None for p in case.of(task)
            )
            if not own and not case.kills(task):
                yield (
                    f"a correction {row['kind']} of task {task['task_index']}/{task['attempt']}, "
                    "which nobody touched"
                )
    for task in record.tasks:
        yield from _confessed(case, task)


def _confessed(case: Case, task: Row) -> Iterator[str]:
    """Check that deaths without the knowledge of the service are recorded as corrections, and how
    late their outcomes were recorded.
    """
    name = f"task {task['task_index']}/{task['attempt']}"
    if task["status"] not in ENDED:
        return
    last = [row for row in case.record.of_task(task["task_id"]) if row["to_status"] in ENDED]
    corrections = [row for row in case.record.corrections if row["task_id"] == task["task_id"]]
    lags = [row["lag_ms"] for row in (*last, *corrections)]
    # A task that disappears without a trace after a request for a stop counts as stopped, and the
    # time of its end is unknown.
    stopped = task["status"] == "CANCELLED" or task["outcome"] == "timed_out"
    if case.of(task) and last and all(lag is None for lag in lags) and not stopped:
        yield f"{name} executed, and nobody says how late its end was recorded"
    kinds = {row["kind"] for row in corrections}
    if task["status"] == "LOST" and not kinds & set(BEHIND_OUR_BACK):
        yield f"{name} is LOST without a correction"
    if (
        task["status"] == "FAILED"
        and task["exit_signal"]
        and task["outcome"] == "failed"
        and "killed" not in kinds
    ):
        yield f"{name} was killed by signal {task['exit_signal']} without a correction ({kinds})"


# --- requests and numbers -------------------------------------------------------------------------


def _requests(case: Case) -> Iterator[str]:
    logged = [row["request_id"] for row in case.record.cancellations]
    for key in {key for key in logged if logged.count(key) > 1}:
        rows = [row for row in case.record.cancellations if row["request_id"] == key]
        yield f"the stop {key} is logged {len(rows)} times: {rows}"
    asks = case.deeds.of(case.number, "stop")
    for ask in asks:
        if ask.way == "gateway" and ask.detail.startswith("202") and ask.key not in logged:
            yield f"the stop {ask.key} was acknowledged and is not logged"
    known = {ask.key for ask in asks}
    for key in set(logged) - known:
        if not key.startswith(("cancel/", "soak-end")):
            yield f"the stop {key} is logged, and nobody asked for it"
    for row in case.record.cancellations:
        if case.record.ended and row["acted_at"] is None:
            yield f"the stop {row['request_id']} was never acted on, and the run has ended"


def _counts(case: Case) -> Iterator[str]:
    record = case.record
    counted: dict[str, int] = {}
    for task in record.current:
        counted[task["status"]] = counted.get(task["status"], 0) + 1
    if record.ended:  # If a run continues, two reads are from two different moments.
        shown = {status: number for status, number in record.shown["tasks"].items() if number}
        if shown != counted:
            yield f"the gateway counts {shown}, the rows are {counted}"
        for name in ("status", "outcome", "attempt", "items"):
            if record.shown[name] != record.run[name]:
                yield f"the gateway says {name} {record.shown[name]}, the row says {record.run[name]}"
    base = len(case.request.get("tasks") or [{}])
    added = {ask.key: ask for ask in case.deeds.of(case.number, "add")}
    sure = sum(
        ask.tasks for ask in added.values() if any(a.answer == "ok" for a in _same(case, ask.key))
    )
    may = sum(ask.tasks for ask in added.values() if not any(a.answer == "ok" for a in _same(case, ask.key))
              and any(a.answer == "unknown" for a in _same(case, ask.key)))  # fmt: skip
    if not base + sure <= len(record.current) <= base + sure + may:
        yield f"{base} tasks and {sure} added (perhaps {may} more), {len(record.current)} count"
    indexes = sorted(task["task_index"] for task in record.current)
    if indexes != list(range(len(indexes))):
        yield f"the indexes that count are {indexes}"
    items = [task["items"] for task in record.current if task["items"] is not None]
    if record.ended and (record.run["items"] or 0) != sum(items):
        yield f"the run has {record.run['items']} items, its tasks have {sum(items)}"


def _same(case: Case, key: str) -> list[Ask]:
    return [ask for ask in case.deeds.of(case.number, "add") if ask.key == key]

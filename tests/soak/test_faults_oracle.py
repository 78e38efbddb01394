"""The oracle of the fault tests: honest records pass, and every false one is found, one for each
invariant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.faults import nodes, oracle
from tools.faults.load import GAP_S, since, untrue
from tools.faults.nodes import OURS, PLAIN, Nodes, said
from tools.faults.oracle import (
    ALIVE,
    DEAD,
    EVERY_S,
    INTERVAL_S,
    LATE_S,
    OVERDUE_S,
    SHORT_LATE_S,
    STRETCH_MAX,
    WAITING,
    Age,
    Ask,
    Evidence,
    Fault,
    Figure,
    Run,
    Seen,
    Task,
    doubled,
    figure,
    judge,
    lost,
    per_thousand,
    statuses,
    verdicts,
)
from tools.faults.table import markdown, together
from tools.soak.journal import Process

T = 1_000_000.0
BLIND_S = INTERVAL_S * STRETCH_MAX + OVERDUE_S
SHUTDOWN = {"code": 11, "reason": "shutdown"}


def process(
    index: int = 0, attempt: int = 1, run: int = 1, *, begin: float = T, last: float = T + 5
) -> Process:
    """A process that finished; its pid belongs only to this run, index and attempt."""
    pid = 100 * run + 10 * index + attempt
    end = {"at": last, "code": 0, "reason": "finished"}
    return Process(run, index, attempt, pid, pid, 1, 1, {}, begin, last, end, None, [])


def stopped() -> Process:
    """A process of run 2, which was stopped three seconds after its start."""
    one = process(run=2, last=T + 3.5)
    return replace(one, end={"at": T + 3.5, **SHUTDOWN}, signals=[T + 3.2])


def honest() -> Evidence:
    """Two runs: one with two tasks that finished, and one that was stopped; a fault, and samples
    that polls explain.
    """
    return Evidence(
        runs=[Run(1, "one", "COMPLETED", "finished", 1), Run(2, "two", "FAILED", "cancelled", 1)],
        tasks=[
            Task((1, 0, 1), "SUCCEEDED", "finished"),
            Task((1, 1, 1), "SUCCEEDED", "finished"),
            Task((2, 0, 1), "CANCELLED", "cancelled"),
        ],
        exports=[(1, 1, "exported", "s3://archive/1"), (2, 1, "empty", None)],
        events=[(1, 1), (2, 1)],
        told=[(1, 1), (2, 1), (2, 1)],
        hooked=[(1, 1), (2, 1), (2, 1)],
        archives={"s3://archive/1": 10},
        processes=[
            replace(process(), args={"number": "g1"}),
            replace(process(1, begin=T + 6, last=T + 8), args={"number": "g2"}),
            stopped(),
        ],
        asks=[
            Ask("start", "one", T - 1, T, 202, 1),
            Ask("start", "two", T - 1, T, 202, 2),
            stop(),
            hook(),
        ],
        seen=[Seen(T + 5 + n / 2, (1, 0, 1), "RUNNING", "over") for n in range(3)],
        wanted={"g1": "", "g2": "g1"},
        schedule=(T, T + 20, 15.0),
        due=[(T + 5, "started", 1)],
        faults=[Fault("kill of worker-1", T + 20, T + 22, {"processes dead": 1})],
    )


def stop() -> Ask:
    return Ask("stop", "s", T + 2.9, T + 3, 202, 2)


def hook() -> Ask:
    return Ask("webhook", "hook", T - 3, T - 2, 201)


def late(status: str, kind: str, seconds: float, since: float = T + 100) -> list[Seen]:
    return [
        Seen(since + n * EVERY_S, (1, 0, 1), status, kind)
        for n in range(int(seconds / EVERY_S) + 2)
    ]


Forge = Callable[[Evidence], object]
LIES: dict[str, tuple[Forge, str]] = {
    "an accepted start is not on record": (
        lambda e: e.asks.append(Ask("start", "three", T, T, 202, 3)),
        "the start three was accepted .202. and is not on record",
    ),
    "a key has two runs": (
        lambda e: e.runs.append(replace(e.runs[0], run_id=3)),
        "2 runs have the key one",
    ),
    "a run never ended": (lambda e: _put(e.runs, 0, status="PROCESSING"), "run 1 never ended"),
    "a task never ended": (
        lambda e: _put(e.tasks, 0, status="RUNNING"),
        "task .1, 0, 1. never ended",
    ),
    "a task is on record twice": (
        lambda e: e.tasks.append(e.tasks[0]),
        "task .1, 0, 1. is on record 2 times",
    ),
    "a task executed twice": (
        lambda e: e.processes.append(process(begin=T + 6, last=T + 7)),
        "task .1, 0, 1. executed 2 times",
    ),
    "a process has no row": (
        lambda e: e.processes.append(process(5)),
        "task .1, 5, 1. executed and is not on record",
    ),
    "a success without a process": (
        lambda e: e.processes.pop(0),
        "succeeded, and no process of it ever began",
    ),
    "two attempts at one time": (
        lambda e: (
            e.processes.append(process(0, 2, 2, begin=T + 3)),
            e.tasks.append(Task((2, 0, 2), "SUCCEEDED", "x")),
        ),
        "index .2, 0. executed twice at the same time",
    ),
    "a success executed again": (
        lambda e: (
            e.processes.append(process(0, 2, begin=T + 6, last=T + 8)),
            e.tasks.append(Task((1, 0, 2), "SUCCEEDED", "finished")),
        ),
        "index .1, 0. had succeeded and was executed again",
    ),
    "a finished crawl failed": (
        lambda e: _put(e.tasks, 0, status="FAILED"),
        "task .1, 0, 1. reported that it finished and is FAILED",
    ),
    "a failed crawl succeeded": (
        lambda e: _put(e.processes, 0, end={"at": T + 5, "code": 1}),
        "task .1, 0, 1. reported that it failed and is SUCCEEDED",
    ),
    "ended while it lives": (
        lambda e: e.seen.append(Seen(T + 4, (1, 0, 1), "SUCCEEDED", "lives")),
        "task .1, 0, 1. ended but lives",
    ),
    "ended while it lives, in a fault": (
        lambda e: e.seen.append(Seen(T + 21, (1, 0, 1), "LOST", "lives")),
        "task .1, 0, 1. ended but lives",
    ),
    "executes for too long after its end": (
        lambda e: e.seen.extend(late("RUNNING", "over", LATE_S)),
        "executes but is over for 2. s without a fault",
    ),
    "waits for too long after its begin": (
        lambda e: e.seen.extend(late("PENDING", "lives", LATE_S)),
        "waits but has begun for 2. s without a fault",
    ),
    "begun after a stop": (
        lambda e: (
            e.processes.append(process(1, 1, 2, begin=T + 200, last=T + 201)),
            e.tasks.append(Task((2, 1, 1), "SUCCEEDED", "finished")),
        ),
        "run 2 was stopped at .*, and this began after it",
    ),
    "stopped and not recorded so": (
        lambda e: _put(e.tasks, 2, status="FAILED", outcome="interrupted"),
        "task .2, 0, 1. was stopped after an accepted stop and is FAILED",
    ),
    "two stop signals": (
        lambda e: _put(e.processes, 2, signals=[T + 3.2, T + 3.3]),
        "got 2 stop signals",
    ),
    "an export twice": (
        lambda e: e.exports.append(e.exports[0]),
        "the export .1, 1. is on record 2 times",
    ),
    "no export": (lambda e: e.exports.pop(), "run .2, 1. ended without an export"),
    "an archive that is not there": (
        lambda e: e.archives.clear(),
        "nothing exists at s3://archive/1",
    ),
    "an event twice": (lambda e: e.events.append((1, 1)), "the event .1, 1. is on record 2 times"),
    "no event": (lambda e: e.events.remove((1, 1)), "run .1, 1. ended without an event"),
    "an event that nobody was told": (
        lambda e: e.told.remove((1, 1)),
        "the event of run .1, 1. .* was never delivered",
    ),
    "a webhook that was never told": (
        lambda e: e.hooked.remove((1, 1)),
        "never notified of the end of run .1, 1.",
    ),
    "a webhook told in another order": (
        lambda e: e.hooked.insert(0, (1, 2)),
        "the webhook was notified of attempt 1 of run 1 after the next one",
    ),
    "a deletion that left the archive": (
        lambda e: e.deleted.update({1: True}),
        "run 1 was deleted, and its archive",
    ),
    "a deletion without an end": (
        lambda e: e.deleted.update({1: False}),
        "the deletion of run 1 never ended",
    ),
    "a deletion that is not on record": (
        lambda e: e.asks.append(Ask("delete", "d", T, T, 202, 1)),
        "the deletion of run 1 was accepted and is not on record",
    ),
    "stuck": (
        lambda e: e.left.append("run 1 is PROCESSING"),
        "90 s without progress after the faults: run 1 is PROCESSING",
    ),
    "a job without a good end": (
        lambda e: e.wanted.update({"m1": ""}),
        "job m1 succeeded 0 times",
    ),
    "a job done twice": (
        lambda e: e.processes.append(replace(process(7), args={"number": "g1"})),
        "job g1 succeeded 2 times",
    ),
    "a step before its time": (
        lambda e: _put(e.processes, 1, begin=T + 4),
        "step g2 began before g1 had ended",
    ),
    "a due time without a line": (
        lambda e: e.due.clear(),
        "the schedule was due at 1000005, and has 0 lines",
    ),
    "a due time with two lines": (
        lambda e: e.due.append((T + 5, "skipped", None)),
        "and has 2 lines",
    ),
    "a due time that began nothing": (
        lambda e: _put_due(e, None),
        "says started, and its run is None",
    ),
    "a process that ended by itself": (lambda e: e.died.append("worker-1 ended"), "worker-1 ended"),
    "a fault that did nothing": (
        lambda e: _put(e.faults, 0, did={"processes dead": 0}),
        "the fault kill of worker-1 did nothing",
    ),
}


def _put_due(e: Evidence, target: int | None) -> None:
    e.due[0] = (T + 5, "started", target)


def _put(rows: list, at: int, **values: object) -> None:  # type: ignore[type-arg]
    rows[at] = replace(rows[at], **values)


def test_what_is_honest_passes() -> None:
    assert judge(honest()) == []


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_found(lie: str) -> None:
    evidence, (forge, told) = honest(), LIES[lie]
    forge(evidence)
    found = judge(evidence)
    assert any(re.search(told, line) for line in found), found


def test_in_a_short_play_faults_may_meet_nobody_but_not_all() -> None:
    evidence = honest()
    first = evidence.faults[0]
    evidence.faults.append(replace(first, did={"processes dead": 0}))
    assert any("did nothing" in line for line in judge(evidence))
    evidence.short = True
    assert not any("did nothing" in line for line in judge(evidence)), "one of two"
    evidence.faults.remove(first)
    assert any("did nothing" in line for line in judge(evidence)), "one of one"


@pytest.mark.parametrize(
    ("short", "patience", "seconds"),
    [(False, 1, LATE_S), (True, 1, SHORT_LATE_S), (True, 1.5, 1.5 * SHORT_LATE_S)],
)
def test_in_a_short_play_a_record_may_be_later_and_more_so_on_a_slow_machine(
    short: bool, patience: float, seconds: float
) -> None:
    for late_by, good in ((seconds - 1, True), (seconds + 1, False)):
        evidence = replace(honest(), short=short, patience=patience)
        evidence.seen += late("RUNNING", "over", late_by)
        assert (judge(evidence) == []) is good


def test_a_fault_excuses_that_a_record_is_late_and_nothing_else() -> None:
    evidence = honest()
    evidence.faults.append(Fault("freeze of mariadb", T + 95, T + 140, {"seconds stopped": 45}))
    evidence.seen += late("RUNNING", "over", 40)
    assert judge(evidence) == []


def after_the_copy(e: Evidence) -> None:
    """What the restored database does not contain: a start with its process, a stop, a deletion, a
    manager, a repeated job.
    """
    e.asks += [
        Ask(kind, f"{kind}-9", T + 301, T + 302, 202, 3)
        for kind in ("start", "stop", "delete", "manager")
    ]
    e.asks.append(Ask("webhook", "other", T + 301, T + 302, 201))
    e.processes.append(process(run=3, begin=T + 303, last=T + 310))
    e.wanted |= {"m9-1": "", "g3": ""}
    for index, at in ((8, T + 303), (9, T + 330)):
        e.processes.append(replace(process(index, begin=at, last=at + 1), args={"number": "g3"}))
    e.tasks += [Task((1, index, 1), "SUCCEEDED", "finished") for index in (8, 9)]


@pytest.mark.parametrize(
    ("whom", "copied", "good"),
    [("database", 300, True), ("database", 304, False), ("postgres", 300, False)],
)
def test_a_restore_excuses_what_was_accepted_after_its_copy_and_nothing_else(
    whom: str, copied: float, good: bool
) -> None:
    evidence = honest()
    after_the_copy(evidence)
    evidence.faults.append(Fault(f"restore of {whom}", T + copied, T + 320, {"rows lost": 7}))
    found = judge(evidence)
    told = (
        "the start start-9 was accepted .202. and is not on record",
        "the deletion of run 3 was accepted and is not on record",
        "task .3, 0, 1. executed and is not on record",
        "job m9-1 succeeded 0 times",
    )
    assert [any(re.search(one, line) for line in found) for one in told] == [not good] * 4
    assert bool(found) is not good, found


def test_a_resume_makes_a_stop_history() -> None:
    evidence = honest()
    evidence.asks.append(Ask("resume", "r", T + 90, T + 91, 202, 2))
    evidence.processes.append(process(0, 2, 2, begin=T + 200, last=T + 201))
    evidence.tasks.append(Task((2, 0, 2), "SUCCEEDED", "finished"))
    assert judge(evidence) == []


def test_untrue_seconds_are_counted_by_the_fault_of_their_time() -> None:
    evidence = honest()
    evidence.seen += late("RUNNING", "over", 1, since=T + 21)
    rows = figure(evidence)
    assert rows["calm"]["untrue"] == 3 * EVERY_S
    assert rows["calm"]["tasks"] == 3
    assert per_thousand(rows["calm"]) == 500
    assert rows["kill of worker-1"][DEAD] == 4 * EVERY_S
    assert rows["kill of worker-1"][f"{DEAD}, tasks"] == 1
    assert rows["kill of worker-1"]["longest"] == 4 * EVERY_S


#: A status, its process before and after it was read, and the column in which this counts.
POLLED: dict[str, tuple[str, str, str, str]] = {
    "begun while it was read": ("PENDING", "none", "lives", ""),
    "begun before it was read": ("PENDING", "lives", "lives", WAITING),
    "begun before, ended while it was read": ("PENDING", "lives", "over", DEAD),
    "ended while it was read": ("RUNNING", "lives", "over", ""),
    "ended before it was read": ("RUNNING", "over", "over", DEAD),
    "ended on record and alive": ("SUCCEEDED", "lives", "lives", ALIVE),
    "ended on record and over": ("SUCCEEDED", "lives", "over", ""),
}


@pytest.mark.parametrize("case", POLLED)
def test_what_changes_while_a_record_is_read_is_not_held_against_it(case: str) -> None:
    status, before, now, column = POLLED[case]
    name = (1, 0, 1)
    found = untrue(T, [(*name, status)], {name: before}, {name: now}, 0.7)
    assert [(one.column, one.seconds) for one in found] == ([(column, 0.7)] if column else [])


def test_a_sample_stands_for_the_time_since_the_one_before_but_for_no_longer_than_is_known() -> (
    None
):
    assert since(T, T + 3) == 3
    assert since(T, T + 60) == GAP_S


def test_what_is_lost_and_doubled_is_counted_by_the_fault_of_its_time() -> None:
    evidence = honest()
    assert (lost(evidence), doubled(evidence)) == ([], [])
    evidence.asks.append(Ask("start", "nobody knows it", T + 20, T + 21, 202, 9))
    _put(evidence.tasks, 0, status="FAILED")
    evidence.processes.append(process(1, begin=T + 21, last=T + 22))
    evidence.lost, evidence.doubled = lost(evidence), doubled(evidence)
    rows = figure(evidence)
    assert {label: row.get("lost", 0) for label, row in rows.items()} == {
        "calm": 1,
        "kill of worker-1": 1,
    }
    assert {label: row.get("doubled", 0) for label, row in rows.items()} == {
        "calm": 0,
        "kill of worker-1": 1,
    }


def test_a_task_that_never_ended_is_lost_when_it_was_last_heard_of() -> None:
    evidence = honest()
    _put(evidence.tasks, 0, status="RUNNING")
    assert lost(evidence) == [T + 5]
    evidence.processes.pop(0)
    assert lost(evidence) == [T], "it never began: its start was accepted then"


def away(kind: str = "long freeze") -> Evidence:
    """Temporal was down for ten minutes, which must not make a record late."""
    evidence = honest()
    evidence.faults.append(Fault(f"{kind} of temporal", T + 100, T + 700, {"seconds stopped": 600}))
    evidence.prompt = "temporal"
    return evidence


@pytest.mark.parametrize(("seconds", "good"), [(LATE_S - 1, True), (LATE_S + 1, False)])
def test_a_fault_that_must_not_hinder_records_excuses_none_that_is_late(
    seconds: float, good: bool
) -> None:
    evidence = away()
    evidence.seen += late("RUNNING", "over", seconds, since=T + 200)
    assert (judge(evidence) == []) is good
    evidence.prompt = ""
    assert judge(evidence) == []


@pytest.mark.parametrize(
    ("seconds", "good"), [(LATE_S + BLIND_S - 1, True), (LATE_S + BLIND_S + 1, False)]
)
def test_without_an_observer_a_record_may_wait_for_the_next_poll(
    seconds: float, good: bool
) -> None:
    evidence = away("blind freeze")
    evidence.seen += late("RUNNING", "over", seconds, since=T + 200)
    assert (judge(evidence) == []) is good


@pytest.mark.parametrize(
    ("age", "good"),
    [
        (Age(T + 300, 20, 14), True),
        (Age(T + 300, 60, 10), True),
        (Age(T + 300, 22, 16), False),
        (Age(T + 300, 76, 0), False),
        (Age(T + 50, 90, 80), True),
    ],
)
def test_a_fault_that_must_not_hinder_polls_leaves_no_run_without_one(age: Age, good: bool) -> None:
    evidence = away()
    evidence.ages.append(age)
    assert (judge(evidence) == []) is good
    assert max(row.get("oldest poll", 0) for row in figure(evidence).values()) == age.oldest


def test_verdicts_that_waited_for_temporal_are_timed_from_its_return() -> None:
    evidence = away()
    evidence.processes += [
        process(run=3, begin=T + 90, last=T + 300),
        process(run=4, begin=T + 90, last=T + 300),
    ]
    ended = {3: T + 704, 4: T + 310}
    evidence.runs += [
        Run(run, str(run), "COMPLETED", "finished", 1, at) for run, at in ended.items()
    ]
    assert verdicts(evidence) == {"long freeze of temporal": [4]}, "the other one did not wait"


def test_the_table_has_both_sides_in_each_cell_and_adds_plays_up() -> None:
    ours: Figure = {
        "kill of worker-1": {"tasks": 4, "untrue": 2, DEAD: 2, f"{DEAD}, tasks": 1, "longest": 2},
        "kill of gateway-2": {"tasks": 6, "untrue": 1, DEAD: 1, f"{DEAD}, tasks": 1, "longest": 1},
        "calm": {"tasks": 10},
    }
    theirs: Figure = {
        "kill of worker-1": {"tasks": 5, "untrue": 2, ALIVE: 2, f"{ALIVE}, tasks": 2, "lost": 3}
    }
    added = together([ours, ours])
    assert added["kill of one of our processes"]["longest"] == 2
    assert list(markdown("ours/theirs", added, together([theirs])))[2:] == [
        "| kill of one of our processes | 20/5 | 300/400 | 0/3 | 0/0 | 0/2 (0/2) | 6/0 (4/0) |",
        "| no fault | 20/0 | 0/0 | 0/0 | 0/0 | 0/0 (0/0) | 0/0 (0/0) |",
    ]


def pod(uid: str, state: str, **labels: object) -> dict[str, Any]:
    """A pod whose container executes for 20 s unless somebody disturbs it."""
    env = [{"name": "KWOK_RUN_FOR", "value": "20s"}]
    shown = {"containerStatuses": [{"state": {state: {}}}]} if state else {}
    named = {name: str(value) for name, value in labels.items()}
    return {
        "metadata": {"uid": uid, "name": uid, "labels": named},
        "spec": {"containers": [{"env": env}]},
        "status": shown,
    }


def plain(state: str) -> dict[str, Any]:
    return pod("one", state, plain=7)


def of_ours(state: str) -> dict[str, Any]:
    return pod(
        "other",
        state,
        **{"crawler-lifecycle/run": 3, "crawler-lifecycle/task": 1, "crawler-lifecycle/attempt": 2},
    )


#: After this number of seconds, with nodes in this state, a container that executed has this state,
#: and its Job reports this, which is untrue in this way.
JOBS: dict[str, tuple[float, str, str, dict[str, int], str]] = {
    "active while it executes": (1, "", "running", {"active": 1}, ""),
    "succeeded after its end": (1, "", "terminated", {"succeeded": 1}, ""),
    "failed after its pod is gone": (1, "", "", {"failed": 1}, ""),
    "failed while its pod is being deleted": (1, "", "running", {"failed": 1}, "ended but lives"),
    "succeeded while it executes": (1, "", "running", {"succeeded": 1}, "ended but lives"),
    "nothing while it executes": (1, "", "running", {}, "waits but has begun"),
    "active after its end": (1, "", "terminated", {"active": 1}, "executes but is over"),
    "active after its pod is gone": (1, "", "", {"active": 1}, "executes but is over"),
    "failed, and its pod gone, while a node that nobody hears executes it": (
        *(19, "cut", "", {"failed": 1}),
        "ended but lives",
    ),
    "active after its time on a node that nobody hears": (
        21,
        "cut",
        "running",
        {"active": 1},
        "executes but is over",
    ),
    "active on a machine that is off": (1, "off", "running", {"active": 1}, "executes but is over"),
}


@pytest.mark.parametrize("word", JOBS)
def test_what_a_job_says_is_held_against_what_its_node_knows(word: str) -> None:
    later, trouble, state, status, lie = JOBS[word]
    known = Nodes()
    known.learn([plain("running"), of_ours("running")], T)
    if trouble:
        setattr(known, trouble, True)
    now = known.learn([plain(state)] if state else [], T + later)[PLAIN]
    assert [one.untrue for one in untrue(T, [(7, 0, 1, said(status))], now, now)] == (
        [lie] if lie else []
    )


def test_what_ours_says_is_held_against_its_own_container_and_judged() -> None:
    known = Nodes()
    assert known.learn([of_ours("")], T)[OURS] == {}, "it did not begin"
    now = known.learn([plain("terminated"), of_ours("running")], T)[OURS]
    seen = untrue(T, [(3, 1, 2, "FAILED")], now, now)
    evidence = Evidence(faults=[Fault("delete of pod", T, T + 1, {})], seen=seen)
    assert statuses(evidence) == [
        f"task (3, 1, 2) ended but lives, seen 1 times from {T} on",
        "the fault delete of pod did nothing: {}",
    ]


def test_the_oracle_knows_nothing_of_the_service() -> None:
    for module in (
        oracle.__file__,
        nodes.__file__,
        Path(oracle.__file__).parents[1] / "soak" / "journal.py",
    ):
        assert "crawler_lifecycle" not in Path(str(module)).read_text()

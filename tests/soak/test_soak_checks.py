"""The auditor of the soak: an honest record passes, and every false one is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from crawler_lifecycle import sqlite_files
from tools.soak.checks import Case, check, growth, tries
from tools.soak.harness import SoakHarness
from tools.soak.journal import Ask, Deeds, Kill, Process
from tools.soak.manager_judge import of_ledger, stands_still
from tools.soak.manager_records import check_managers
from tools.soak.plan import Plan, Step, without_lost_disks, write_plan
from tools.soak.run_records import RunRecord
from tools.soak.strikes import Strike
from tools.soak.truth import OOM, Stops, allowed, verdicts

T = 1_000_000.0
NO_STOP = Stops(may=False, must=False)


def process(
    index: int = 0, attempt: int = 1, *, begin: float = T + 2, last: float = T + 5, **more: Any
) -> Process:
    end = more.pop("end", {"at": last, "code": 0, "reason": "finished", "pages": 7})
    base: dict[str, Any] = {
        "run_id": 1,
        "task_id": 10 * attempt + index,
        "pid": 100 + index,
        "start": 1,
        "runner": 99,
    }
    base |= {
        "args": {"how": "finished", "seconds": "3"},
        "lost": None,
        "signals": [],
        "begin": begin,
        "last": last,
    }
    return Process(index=index, attempt=attempt, end=end, **{**base, **more})


def moved(
    task: int | None, before: str | None, after: str, at: float, **more: Any
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "seq": int(at * 10),
        "task_id": task,
        "attempt": 1,
        "from_status": before,
    }
    row |= {
        "to_status": after,
        "cluster_time": None,
        "committed_at": at,
        "lag_ms": None,
        "source": "look",
    }
    return row | more


def honest() -> Case:
    """One run with one task that finished, with its correct record."""
    run = {
        "run_id": 1,
        "status": "COMPLETED",
        "outcome": "finished",
        "attempt": 1,
        "items": 7,
        "stage": "completion",
    }
    task: dict[str, Any] = {
        "task_id": 10,
        "task_index": 0,
        "attempt": 1,
        "superseded_by": None,
        "status": "SUCCEEDED",
    }
    task |= {
        "outcome": "finished",
        "cause": "",
        "cluster_uid": "u",
        "exit_code": 0,
        "exit_signal": None,
        "pages": 7,
    }
    task |= {
        "items": 7,
        "started_at": T + 2,
        "ended_at": T + 5.1,
        "run_attempt": 1,
        "retry": 0,
        "retry_note": None,
    }
    transitions = [
        moved(None, None, "INITIALIZING", T),
        moved(10, "QUEUED", "PENDING", T + 1),
        moved(10, "PENDING", "RUNNING", T + 3),
        moved(None, "INITIALIZING", "PROCESSING", T + 3.5),
        moved(10, "RUNNING", "SUCCEEDED", T + 6, lag_ms=900, cluster_time=T + 5.1),
        moved(None, "PROCESSING", "COMPLETED", T + 6.5, lag_ms=1400, cluster_time=T + 5.1),
    ]
    record = RunRecord(
        run, [task], transitions, [], [], [], [], [], shown={**run, "tasks": {"SUCCEEDED": 1}}
    )
    return Case(1, record, [process()], Deeds(), {"limits": {}})


def violations(case: Case) -> str:
    return "\n".join(check(case))


def test_an_honest_record_passes() -> None:
    assert violations(honest()) == ""


def a_success_that_never_was(case: Case) -> None:
    case.processes[0] = process(end={"at": T + 5, "code": 1, "reason": None, "pages": 7})


def a_success_that_never_executed(case: Case) -> None:
    case.processes.clear()


def a_second_process_at_one_time(case: Case) -> None:
    case.processes.append(process(pid=200, begin=T + 4))


def executed_again_after_its_success(case: Case) -> None:
    case.processes.append(process(attempt=2, begin=T + 9, last=T + 10))


def two_stop_signals(case: Case) -> None:
    case.processes[0] = process(signals=[T + 3, T + 4])


def a_process_that_no_row_knows(case: Case) -> None:
    case.processes.append(process(index=3, begin=T + 1))


def executes_after_its_end(case: Case) -> None:
    case.processes[0] = process(last=T + 8)


def a_counter_that_is_wrong(case: Case) -> None:
    case.record.tasks[0]["pages"] = 6


def a_broken_chain(case: Case) -> None:
    case.record.transitions[2]["from_status"] = "QUEUED"


def a_step_back(case: Case) -> None:
    case.record.transitions.insert(3, moved(10, "RUNNING", "PENDING", T + 3.2))
    case.record.transitions.insert(4, moved(10, "PENDING", "RUNNING", T + 3.3))


def commits_out_of_order(case: Case) -> None:
    case.record.transitions[1]["committed_at"] = T + 3.2


def a_verdict_over_other_tasks(case: Case) -> None:
    case.record.run |= {"status": "FAILED", "outcome": "cancelled"}


def a_correction_that_nobody_caused(case: Case) -> None:
    row = {
        "kind": "killed",
        "task_id": 10,
        "lag_ms": 10,
        "created_at": T + 6,
        "believed": "RUNNING",
    }
    case.record.corrections.append(row)


def an_end_that_was_none(case: Case) -> None:
    case.record.corrections.append(
        {"kind": "still_alive", "task_id": 10, "lag_ms": 10, "created_at": T + 6}
    )


def a_stop_that_was_forgotten(case: Case) -> None:
    case.deeds.asked(Ask(3, 1, "stop", T + 3, T + 3.1, "ok", "202 …", key="s", way="gateway"))


def a_stop_that_nobody_asked_for(case: Case) -> None:
    case.record.cancellations.append({"request_id": "x", "attempt": 1, "acted_at": "then"})


def one_request_twice(case: Case) -> None:
    case.deeds.asked(Ask(3, 1, "stop", T + 3, T + 3.1, "ok", "202 …", key="s", way="gateway"))
    case.record.cancellations += [
        {"request_id": "s", "attempt": n, "acted_at": "then"} for n in (1, 2)
    ]


def a_task_too_many(case: Case) -> None:
    case.request["tasks"] = [{}, {}]


def a_gateway_that_says_something_else(case: Case) -> None:
    case.record.shown["status"] = "PROCESSING"


def dated_before_its_end(case: Case) -> None:
    case.record.tasks[0]["ended_at"] = T + 4


def tried_again(case: Case) -> None:
    """The truth: the first try was interrupted, and the second one finished."""
    case.processes.append(process(attempt=2, begin=T + 8, last=T + 11))
    case.processes[0] = process(
        signals=[T + 4], end={"at": T + 5, "code": 143, "reason": None, "pages": 7}
    )
    first = case.record.tasks[0]
    case.record.tasks.append(
        {**first, "task_id": 20, "attempt": 2, "retry": 1, "ended_at": T + 11.1}
    )
    first |= {"status": "FAILED", "outcome": "interrupted", "exit_code": 143, "superseded_by": 20}
    case.record.transitions[4]["to_status"] = "FAILED"
    later = [
        ("QUEUED", "PENDING", 7.5),
        ("PENDING", "RUNNING", 9.0),
        ("RUNNING", "SUCCEEDED", 12.0),
    ]
    moves = [moved(20, *move, T + at, lag_ms=900) for *move, at in later]
    case.record.transitions[5:] = [moved(20, None, "QUEUED", T + 7, source="retry"), *moves]
    case.record.transitions.append(moved(None, "PROCESSING", "COMPLETED", T + 12.5))


def test_an_honest_record_of_two_tries_passes() -> None:
    case = honest()
    tried_again(case)
    assert violations(case) == ""


def a_try_after_a_crawlers_own_end(case: Case) -> None:
    tried_again(case)
    case.record.tasks[0]["outcome"] = "failed"


def a_try_that_nobody_counted(case: Case) -> None:
    tried_again(case)
    case.record.tasks[1]["retry"] = 0


def a_try_beyond_the_policy(case: Case) -> None:
    tried_again(case)
    case.record.tasks[0]["retry"], case.record.tasks[1]["retry"] = 3, 4


def a_try_before_the_end_of_the_one_before(case: Case) -> None:
    tried_again(case)
    case.processes[1].begin = T + 4


def no_try_and_no_word_about_it(case: Case) -> None:
    tried_again(case)
    case.record.tasks[1]["outcome"] = "evicted"


LIES = [
    (a_try_after_a_crawlers_own_end, "is retry 1 after"),
    (a_try_that_nobody_counted, "is retry 0 after"),
    (a_try_beyond_the_policy, "is retry 4 of 3"),
    (a_try_before_the_end_of_the_one_before, "executed twice at the same time"),
    (no_try_and_no_word_about_it, "nobody says why"),
    (a_success_that_never_was, "expected"),
    (a_success_that_never_executed, "never executed"),
    (a_second_process_at_one_time, "executed twice at the same time"),
    (executed_again_after_its_success, "was executed again"),
    (two_stop_signals, "got 2 stop signals"),
    (a_process_that_no_row_knows, "no row knows"),
    (executes_after_its_end, "recorded as ended"),
    (a_counter_that_is_wrong, "counted 7 pages"),
    (a_broken_chain, "where PENDING was on record"),
    (a_step_back, "cannot become"),
    (commits_out_of_order, "do not grow"),
    (a_verdict_over_other_tasks, "the run is"),
    (a_correction_that_nobody_caused, "nobody touched"),
    (an_end_that_was_none, "still_alive"),
    (a_stop_that_was_forgotten, "is not logged"),
    (a_stop_that_nobody_asked_for, "nobody asked for it"),
    (one_request_twice, "logged 2 times"),
    (a_task_too_many, "2 tasks"),
    (a_gateway_that_says_something_else, "the gateway says status"),
    (dated_before_its_end, "is recorded as ended at"),
]


@pytest.mark.parametrize(
    ("lie", "found"), [pytest.param(*case, id=case[0].__name__) for case in LIES]
)
def test_every_lie_is_found(lie: Callable[[Case], None], found: str) -> None:
    case = honest()
    lie(case)
    assert found in violations(case)


def test_what_happens_at_the_same_time_may_come_first_or_last() -> None:
    kill = Kill((1, 0, 1), "crawler", T + 4)
    killed = process(end=None)
    assert allowed(killed, [kill], NO_STOP) == {("FAILED", "failed")}
    assert allowed(killed, [], NO_STOP) == set(), (
        "what died by itself without a word is explained by nothing"
    )
    lost = [kill, Kill((1, 0, 1), "supervisor", T + 4)]
    assert allowed(killed, lost, NO_STOP) == {("FAILED", "failed"), ("LOST", "lost")}
    surely, perhaps = Stops(may=True, must=True), Stops(may=True, must=False)
    assert {status for status, _ in allowed(killed, [kill], surely)} == {"CANCELLED"}
    assert {status for status, _ in allowed(killed, [kill], perhaps)} == {"CANCELLED", "FAILED"}
    assert allowed(process(), [], surely) == {("SUCCEEDED", "finished")}, (
        "a stop that comes too late"
    )
    forced = Stops(may=True, must=True, force=True)
    assert {status for status, _ in allowed(process(), [], forced)} == {"SUCCEEDED", "CANCELLED"}
    told = process(end={"at": T + 5, "code": 0, "reason": "closespider_x", "pages": 7})
    assert allowed(told, [], NO_STOP) == {("SUCCEEDED", "closespider_x")}
    assert {status for status, _ in allowed(told, [], surely)} == {"CANCELLED"}


def test_a_crawler_that_needs_too_much_memory_ends_of_it() -> None:
    starving = process(end=None, hungry=T + 4)
    assert allowed(starving, [], NO_STOP, starves=True) == {OOM}
    assert allowed(starving, [], NO_STOP) == set(), "it had enough"
    assert allowed(process(end=None), [], NO_STOP, starves=True) == set(), "it had not begun to eat"
    assert allowed(process(hungry=T + 4), [], NO_STOP, starves=True) == {OOM}, (
        "nobody noticed what it took"
    )
    watcher = Kill((1, 0, 1), "supervisor", T + 4)
    assert ("SUCCEEDED", "finished") in allowed(
        process(hungry=T + 4), [watcher], NO_STOP, starves=True
    )


@pytest.mark.parametrize(
    ("memory", "outcome", "lie"),
    [
        ([None, "128Mi", "224Mi"], "killed by oom", False),
        ([None, None, None], "interrupted", False),
        ([None, "64Mi", "128Mi"], "killed by oom", True),
        ([None, "128Mi", "256Mi"], "killed by oom", True),
        (["224Mi", "224Mi", "224Mi"], "killed by oom", True),
        ([None, "128Mi", "128Mi"], "interrupted", True),
    ],
)
def test_memory_grows_after_ends_for_lack_of_it_and_up_to_the_most(
    memory: list[str | None], outcome: str, lie: bool
) -> None:
    rows = [
        {
            "task_id": n,
            "task_index": 0,
            "attempt": n,
            "retry": n - 1,
            "memory": has,
            "outcome": outcome,
        }
        | {"superseded_by": n + 1 if n < 3 else None}
        for n, has in enumerate(memory, 1)
    ]
    assert bool(list(growth(rows, 64 * 2**20, 2, 224 * 2**20))) is lie


def test_an_end_for_lack_of_memory_is_tried_again_where_the_policy_says_so() -> None:
    case = honest()
    tried_again(case)
    case.record.tasks[0]["outcome"] = "killed by oom"
    assert "0/2 is retry 1 after" in " ".join(tries(case.record.tasks, over=True))
    assert not list(tries(case.record.tasks, over=True, hungry=True))


@pytest.mark.parametrize(
    ("former", "later", "link", "lie"), [(1, 2, 20, False), (2, 1, 20, True), (1, 2, None, True)]
)
def test_a_task_that_outlives_a_takeover_is_tried_again_in_the_new_attempt(
    former: int, later: int, link: int | None, lie: bool
) -> None:
    case = honest()
    tried_again(case)
    case.record.tasks[0] |= {"run_attempt": former, "superseded_by": link}
    case.record.tasks[1]["run_attempt"] = later
    assert ("is retry 1 after" in " ".join(tries(case.record.tasks, over=True))) is lie


def test_verdicts() -> None:
    good, bad = ("SUCCEEDED", "finished"), ("FAILED", "banned")
    assert verdicts([good, good], NO_STOP, None) == {("COMPLETED", "finished")}
    assert verdicts([good, bad], NO_STOP, None) == {("FAILED", "partial")}
    assert verdicts([bad, bad], NO_STOP, None) == {("FAILED", "banned")}
    assert verdicts([good, bad], Stops(may=True, must=True), None) == {("FAILED", "cancelled")}


def test_a_plan_without_lost_disks_is_the_same_otherwise() -> None:
    plan = write_plan(3, 10, 50)
    kept = without_lost_disks(plan)
    assert "folder" in str(plan)
    assert "folder" not in str(kept)
    assert [step.number for step in kept.steps] == [
        step.number for step in plan.steps if step.kind != "hide"
    ]


def test_a_seed_is_a_plan() -> None:
    assert str(write_plan(7, 2, 50)) == str(write_plan(7, 2, 50)) != str(write_plan(8, 2, 50))
    steps = write_plan(7, 5, 50).steps
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert max(step.run or 0 for step in steps) == sum(step.kind == "start" for step in steps) <= 50


# --- managers -------------------------------------------------------------------------------------


def stream(*numbers: int, at_once: int = 2, pause_s: float = 4.0) -> list[Process]:
    """Crawls of these jobs of a manager, with a limited number at once."""
    return [
        process(
            index,
            begin=T + index // at_once * pause_s,
            last=T + index // at_once * pause_s + 3,
            args=args,
        )
        for index, args in enumerate({"number": str(number)} for number in numbers)
    ]


def test_an_honest_stream_passes() -> None:
    crawls = stream(0, 1, 2, 3)
    again = process(9, begin=T + 9, args={"number": "0", "retry_num": "1"})
    crawls[0].end, killed = None, {(crawls[0].pid, crawls[0].start)}
    assert list(of_ledger([*crawls, again], 4, killed)) == []
    assert list(stands_still(crawls, 2, [])) == []


@pytest.mark.parametrize(
    ("numbers", "said"),
    [((0, 1, 3), "lost: [2]"), ((0, 1, 2, 3, 3), "more than once (number, retry): {(3, '0'): 2}")],
)
def test_a_stream_that_lost_or_doubled_a_job_is_found(numbers: tuple[int, ...], said: str) -> None:
    assert said in list(of_ledger(stream(*numbers), 4, set()))


def test_a_crawl_that_nobody_killed_is_found() -> None:
    crawls = stream(0, 1)
    crawls[1].end = None
    assert [text[:13] for text in of_ledger(crawls, 2, set())][-1] == "nobody killed"


def test_a_manager_that_stands_still_is_found_unless_it_was_in_trouble() -> None:
    crawls = stream(*range(4), pause_s=30.0)
    assert [text[:28] for text in stands_still(crawls, 2, [])] == ["it stood still for 27.0 s be"]
    assert list(stands_still(crawls, 2, [Strike("temporal killed", T + 2, T + 16)])) == []
    assert list(stands_still(stream(*range(4), pause_s=17.0), 2, [])) == []


class Rows:
    """The rows of a manager with two jobs that finished: T is 13:46:40 of 12 January 1970."""

    def __init__(self) -> None:
        self.db = sqlite_files.driver.connect(":memory:")
        self.db.executescript(
            """
            CREATE TABLE manager (manager_id, flow_id, status, outcome, cause, ended_at, good, bad);
            CREATE TABLE manager_item (manager_id, seq, retry, state, run_id, outcome);
            CREATE TABLE run_history (run_id, attempt, request_id, status, outcome);
            INSERT INTO manager VALUES (5, 'M1', 'COMPLETED', 'finished', '', '1970-01-12 13:46:49', 2, 0);
            INSERT INTO manager_item VALUES (5, 1, 0, 'ended', 1, 'finished'), (5, 2, 0, 'ended', 2, 'finished');
            INSERT INTO run_history VALUES (1, 1, 'manager/5/1', 'COMPLETED', 'finished'),
                                           (2, 1, 'manager/5/2', 'COMPLETED', 'finished');
            """
        )
        jobs = [{"number": "0"}, {"number": "1"}]
        self.plan = Plan(
            1, 1, 10, 1, [Step(1, 0.0, "manage", None, {"manager": 1, "jobs": jobs, "cap": 1})]
        )
        self.deeds = Deeds(asks=[Ask(1, 0, "manage", T, T + 1, "ok", manager=1)] * 2)
        self.processes = [process(run_id=1), process(run_id=2, begin=T + 5, last=T + 8)]

    def query(self, sql: str, *values: object) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def violations(self) -> str:
        return "\n".join(
            check_managers(cast(SoakHarness, self), self.plan, self.deeds, self.processes)
        )


def test_honest_rows_of_a_manager_pass() -> None:
    assert Rows().violations() == ""


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("UPDATE manager SET outcome = 'cancelled', status = 'FAILED'", "expected"),
        ("UPDATE manager SET good = 1, bad = 1", "counts 1 good"),
        ("UPDATE manager SET ended_at = '1970-01-12 13:46:43'", "this executed"),
        ("UPDATE manager SET flow_id = 'M2'", "is not on record"),
        ("UPDATE manager_item SET state = 'started' WHERE seq = 2", "job 2.r0 (run 2) is started"),
        ("UPDATE manager_item SET outcome = 'failed' WHERE seq = 2", "job 2.r0 ended failed"),
        ("UPDATE manager_item SET seq = 3 WHERE seq = 2", "finished with the jobs [1, 3]"),
        ("UPDATE run_history SET request_id = 'manager/5/1'", "2 runs of 2 tries"),
    ],
)
def test_lies_about_managers_are_found(lie: str, told: str) -> None:
    rows = Rows()
    rows.db.execute(lie)
    assert told in rows.violations()


def test_a_window_that_does_not_hold_is_found() -> None:
    rows = Rows()
    rows.processes[1] = process(run_id=2, begin=T + 4, last=T + 8)
    assert "2 crawls of it executed at once" in rows.violations()

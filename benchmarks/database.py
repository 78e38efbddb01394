"""The database with very many rows: lists, counts, a large sync, added tasks, and the event stream,
on MariaDB and SQLite.

Every figure is a median. A figure and its baseline take turns in the same database.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from benchmarks.both_databases import on_both
from benchmarks.sizes import size
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.domain.task import Counters, End, Observation, Phase, TaskState, reconcile
from crawler_lifecycle.ports.polls import Poll, TaskFinding
from crawler_lifecycle.ports.runs import DeployedTask, Fence, Owner
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.runs.tables import task_history
from crawler_lifecycle.store.runs.unit import count_tasks
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.store.tables import metadata
from tests.support.filling import (
    COMMON_TAG,
    CRAWLERS,
    FILLED_FROM,
    RARE_TAG,
    analyze,
    fill_events,
    fill_runs,
    fill_tasks,
    patient_engine,
)

RUNS = size(100_000, 2_000)
LARGE_RUNS = size(1_000, 20)
EACH = size(1_000, 50)
CHANGED = size(10_000, 200)
ROUNDS = size(3, 2)
#: Rounds of the two counts, which need one large run each.
COUNTED = size(200, 8)
PAGE = 50
CHUNK = 1_000
OWNER = Owner("benchmark", "benchmark")


async def main() -> None:
    """Print every figure for both databases."""
    on_both(_figures)


def _figures(name: str, url: str) -> None:
    upgrade(url)
    store = open_store(url)
    begun = time.monotonic()
    # With a separate engine, because filling a database takes longer than any statement of the
    # service may.
    filler = patient_engine(store.database.engine.url)
    with filler.begin() as connection:
        first = fill_runs(connection, RUNS)
        fill_tasks(connection, first, LARGE_RUNS, EACH)
        fill_events(connection, first, RUNS)
    with filler.begin() as connection:
        analyze(connection, list(metadata.tables))
    filler.dispose()
    filled = time.monotonic() - begun
    print(
        f"{name}: filled with {RUNS:,} runs and {LARGE_RUNS * EACH:,} tasks in {filled:.0f} s",
        flush=True,
    )
    try:
        for figure in (_lists, _finds, _screens, _counts, _events, _additions, _sync):
            figure(store, name)
    finally:
        store.close()


# --- measuring ------------------------------------------------------------------------------------


def _milliseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def _rotated(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median of each call in milliseconds; the calls take turns, after one round that
    does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            taken = _milliseconds(call)
            if turn:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, which must not happen in the middle of one of two things that are
    compared.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- figures --------------------------------------------------------------------------------------


def _filters() -> dict[str, dict[str, Any]]:
    live = [status.value for status in RunStatus if not status.terminal]
    day = timedelta(days=1)
    return {
        "all": {},
        "a page in the middle": {"before_run_id": RUNS // 2},
        "status COMPLETED": {"status": ["COMPLETED"]},
        "status FAILED, COMPLETED": {"status": ["FAILED", "COMPLETED"]},
        "status of the live": {"status": live},
        "stage completion": {"stage": "completion"},
        "stage deployment": {"stage": "deployment"},
        "crawler": {"crawler": "crawler-7"},
        "crawler, FAILED": {"crawler": "crawler-7", "status": ["FAILED"]},
        "crawler, rare outcome": {"crawler": "crawler-7", "outcome": "memory_exceeded"},
        "crawler, outcome of others": {"crawler": "crawler-8", "outcome": "memory_exceeded"},
        "trigger scheduled": {"trigger": "scheduled"},
        "trigger manual (1 in 1,000)": {"trigger": "manual"},
        "outcome": {"outcome": "memory_exceeded"},
        "flow": {"flow_id": "flow-1000"},
        "tag on half of the runs": {"tags": [COMMON_TAG]},
        "tag on 1 in 1,000": {"tags": [RARE_TAG]},
        "common tag, crawler": {"tags": [COMMON_TAG], "crawler": "crawler-7"},
        "common tag, FAILED": {"tags": [COMMON_TAG], "status": ["FAILED"]},
        "rare tag, FAILED (none)": {"tags": [RARE_TAG], "status": ["FAILED"]},
        "manual, crawler of none": {"trigger": "manual", "crawler": "crawler-8"},
        "created in the first week": {"created_until": FILLED_FROM + 7 * day},
        "created on one day": {
            "created_from": FILLED_FROM + 30 * day,
            "created_until": FILLED_FROM + 31 * day,
        },
        "created since, FAILED": {"created_from": FILLED_FROM + 60 * day, "status": ["FAILED"]},
        "created in the first week, crawler": {
            "created_until": FILLED_FROM + 7 * day,
            "crawler": "crawler-7",
        },
        "attention, of 30 days": {
            "attention": True,
            "created_from": FILLED_FROM + timedelta(minutes=RUNS) - 30 * day,
        },
    }


def _lists(store: Store, name: str) -> None:
    calls = {
        title: lambda wanted=wanted: store.runs.list_runs(limit=PAGE, **wanted)
        for title, wanted in _filters().items()
    }
    medians = _rotated(calls, 7)
    worst = max(medians, key=lambda title: medians[title])
    print(
        f"  list of {PAGE} among {RUNS:,} runs, worst of {len(medians)} filters: "
        f"{medians[worst]:.1f} ms ({worst}) ",
        end="",
    )
    print("(target: <= 50 ms on MariaDB)")
    for title, median in sorted(medians.items(), key=lambda one: -one[1]):
        print(f"    {median:7.1f} ms  {title}")


def _searches() -> dict[str, dict[str, Any]]:
    """Measure searches for texts of many and of few runs, among the newest ones and far below them,
    and in other orders.
    """
    texts = {
        "every run": "crawl",
        "a tag on 1 in 1,000": "RAR",
        "no run": "zzzz",
        "old flows": "flow-1000",
    }
    texts |= {"more flows than are listed": "flow-1", "numbers": "77", "one number": "12345"}
    found = {f"search for {title}": {"search": text} for title, text in texts.items()}
    ended = {"status": ["FAILED", "COMPLETED"]}
    found |= {
        f"search for {title}, ended": {"search": text, **ended} for title, text in texts.items()
    }
    found["search for a tag, crawler"] = {"search": "rar", "crawler": "crawler-7"}
    found["search for a tag, tag"] = {"search": "rar", "tags": [COMMON_TAG]}
    found |= {
        f"order of {sort}": {"search": None, "sort": sort} for sort in ("-items", "took", "crawler")
    }
    return found


def _finds(store: Store, name: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        title: lambda wanted=wanted: store.runs.search_runs(limit=PAGE + 1, **wanted)
        for title, wanted in _searches().items()
    }
    calls["total of all runs"] = lambda: store.runs.count_found(10_001)
    calls["total of a tag, FAILED"] = lambda: store.runs.count_found(
        10_001, tags=[COMMON_TAG], status=["FAILED"]
    )
    calls["values that filters offer, once in 10 s"] = lambda: store.runs.known_values(100)
    medians = _rotated(calls, 7)
    worst = max(medians, key=lambda title: medians[title])
    print(
        f"  search and order among {RUNS:,} runs, worst: {medians[worst]:.1f} ms ({worst}) (target: "
        "<= 100 ms)"
    )
    for title, median in sorted(medians.items(), key=lambda one: -one[1]):
        print(f"    {median:7.1f} ms  {title}")


def _screens(store: Store, name: str) -> None:
    crawlers = [f"crawler-{n}" for n in range(CRAWLERS)]
    calls = {
        f"last 20 runs of {CRAWLERS} crawlers": lambda: store.runs.recent_runs(crawlers, 20),
        "attention, of all runs": lambda: store.runs.list_runs(
            limit=PAGE, attention=True, created_from=FILLED_FROM
        ),
    }
    print(
        "  "
        + ", ".join(f"{title}: {median:.1f} ms" for title, median in _rotated(calls, 7).items())
    )


def _counts(store: Store, name: str) -> None:
    runs = iter(range(1, LARGE_RUNS + 1))
    with store.database.reading() as connection:
        open_ = _rotated(
            {
                "SELECT 1": lambda: connection.execute(sa.text("SELECT 1")).scalar_one(),
                "count": lambda: count_tasks(connection, next(runs)),
            },
            COUNTED,
        )
    whole = _rotated(
        {
            "SELECT 1": lambda: _select_one(store),
            "count": lambda: store.tasks.count_tasks(next(runs)),
        },
        COUNTED,
    )
    print(
        f"  count of the alive tasks of a run of {EACH:,} among {LARGE_RUNS * EACH:,} tasks: ",
        end="",
    )
    print(
        f"{open_['count']:.2f} ms (target: <= 0.3 ms on MariaDB; baseline SELECT 1: "
        f"{open_['SELECT 1']:.2f} ms); ",
        end="",
    )
    print(f"with its connection {whole['count']:.2f} ms (SELECT 1: {whole['SELECT 1']:.2f} ms)")


def _select_one(store: Store) -> None:
    with store.database.reading() as connection:
        connection.execute(sa.text("SELECT 1")).scalar_one()


def _events(store: Store, name: str) -> None:
    last = store.events.last_event_seq()
    medians = _rotated(
        {
            "page": lambda: store.events.events_after(last // 2, limit=500),
            "tail": lambda: store.events.events_after(last, limit=500),
            "one": lambda: _select_one(store),
        },
        20,
    )
    print(
        f"  500 events out of {last:,}: {medians['page']:.1f} ms; none after the newest: "
        f"{medians['tail']:.2f} ms ",
        end="",
    )
    print(f"(baseline SELECT 1: {medians['one']:.2f} ms)")


def _additions(store: Store, name: str) -> None:
    """Measure ``add_tasks``, compared with the bare bulk INSERT of the same rows."""
    args = [{"url": f"https://site.example/{n}"} for n in range(CHANGED)]
    keys = iter(range(10**6))

    def new_run() -> int:
        return store.initiation.reserve_run(RunRequest(crawler="added"), f"added-{next(keys)}")[
            0
        ].run_id

    times: dict[str, list[float]] = {"add": [], "again": [], "bare": []}
    for _ in range(3):
        run_id, other = new_run(), new_run()
        with _no_collection():
            times["add"].append(_milliseconds(lambda: store.additions.add_tasks(run_id, "k", args)))  # noqa: B023
            times["again"].append(
                _milliseconds(lambda: store.additions.add_tasks(run_id, "k", args))  # noqa: B023
            )
            times["bare"].append(_milliseconds(lambda: _bare_insert(store, other, args)))  # noqa: B023
    add, again, bare = (statistics.median(times[title]) for title in ("add", "again", "bare"))
    print(f"  {CHANGED:,} added tasks: {add:.0f} ms, asked again {again:.0f} ms; ", end="")
    print(f"baseline, the INSERT alone: {bare:.0f} ms (ratio {bare / add:.2f})")


def _bare_insert(store: Store, run_id: int, args: list[dict[str, str]]) -> None:
    now = datetime.now(UTC)
    common = {
        "run_id": run_id,
        "attempt": 1,
        "run_attempt": 1,
        "status": "QUEUED",
        "status_since": now,
        "ever_seen": False,
    }
    rows = [{**common, "task_index": 1 + n, "args": own} for n, own in enumerate(args)]
    with store.database.writing() as connection:
        connection.execute(sa.insert(task_history), rows)


def _sync(store: Store, name: str) -> None:
    """Measure ``apply_findings`` for 10,000 ends, compared with a bare UPDATE … IN of the status of
    the same rows.
    """
    times: dict[str, list[float]] = {"bare": [], "poll": [], "details": [], "sync": []}
    for turn in range(ROUNDS):
        fence, poll, findings = _large_run(store, f"sync-{turn}")
        ids = [finding.change.task_id for finding in findings]
        with _no_collection():
            times["poll"].append(
                _milliseconds(lambda: store.polls.record_poll(fence, poll, findings, None))  # noqa: B023
            )
            times["details"].append(_milliseconds(lambda: store.polls.apply_details(fence)))  # noqa: B023
            times["bare"].append(_milliseconds(lambda: _bare_update(store, ids, "STOPPING")))  # noqa: B023
            times["bare"].append(_milliseconds(lambda: _bare_update(store, ids, "PENDING")))  # noqa: B023
            times["sync"].append(_milliseconds(lambda: store.polls.apply_findings(fence, "look")))  # noqa: B023
            times["bare"].append(_milliseconds(lambda: _bare_update(store, ids, "RUNNING")))  # noqa: B023
        assert store.runs.transitions(fence.run_id, limit=1, after_seq=0)
    median = {title: statistics.median(taken) for title, taken in times.items()}
    print(
        f"  sync of {CHANGED:,} changed statuses with their transitions: {median['sync']:.0f} ms; ",
        end="",
    )
    print(f"baseline, UPDATE ... IN of the same rows: {median['bare']:.0f} ms, ", end="")
    print(f"ratio {median['bare'] / median['sync']:.2f} (target: >= 0.15 on MariaDB); ", end="")
    print(
        f"before it, the poll took {median['poll']:.0f} ms and the details "
        f"{median['details']:.0f} ms",
        flush=True,
    )


def _large_run(store: Store, request_id: str) -> tuple[Fence, Poll, list[TaskFinding]]:
    """Create a run of 10,000 RUNNING tasks, and a poll that finds them all ended."""
    row, _ = store.initiation.reserve_run(RunRequest(crawler="large"), request_id, [{}] * CHANGED)
    handle = store.initiation.claim_run(RunRequest(run_id=row.run_id), OWNER, lambda _: False)
    fence = Fence(handle.run_id, handle.attempt, OWNER.first_run_id, handle.run_uid)
    now = datetime.now(UTC)
    offered, _ = store.deployment.offer_tasks(fence, CHANGED, None, now)
    answers = [
        DeployedTask(t.index, "created", f"crawl-{fence.run_id}-{t.index}-1", f"uid-{t.task_id}")
        for t in offered
    ]
    store.deployment.record_deployed(fence, "local", offered, answers, now)
    state = store.polls.found_state(fence)
    seen = [_ended(task, now) for task in state.tasks]
    changes = [
        (reconcile(task, one, None, due_at=now), one)
        for task, one in zip(state.tasks, seen, strict=True)
    ]
    findings = [TaskFinding(change, one) for change, one in changes if change is not None]
    assert len(findings) == CHANGED
    return fence, Poll(now, 1.0, seen), findings


def _ended(task: TaskState, now: datetime) -> Observation:
    """Return the end of one task: each at a different time, on one of twenty nodes, one in ten
    without success.
    """
    ended = now + timedelta(milliseconds=task.index)
    good = task.index % 10
    end = End(
        exit_code=0 if good else 1,
        reason="Completed" if good else "Error",
        finish_reason="finished" if good else None,
        finished_at=ended,
    )
    return Observation(
        task.index,
        task.attempt,
        Phase.ENDED,
        now,
        name=f"crawl-{task.task_id}",
        uid=task.uid,
        node=f"node-{task.index % 20}",
        changed_at=ended,
        started_at=now,
        counters=Counters(100 + task.index, 50, 0, 10_000),
        end=end,
    )


def _bare_update(store: Store, ids: list[int], status: str) -> None:
    t = task_history.c
    with store.database.writing() as connection:
        for start in range(0, len(ids), CHUNK):
            chosen = ids[start : start + CHUNK]
            connection.execute(
                sa.update(task_history).where(t.task_id.in_(chosen)).values(status=status)
            )

"""Any sequence of steps, each tried once or twice, keeps the invariants."""

from __future__ import annotations

from collections import defaultdict
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.run import RunStatus, run_may_become
from crawler_lifecycle.domain.task import Counters, Phase, TaskStatus, task_may_become
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.harness import Clock, Harness, bad_end, good_end, seen
from tests.support.databases import make_tables
from tests.support.examples import examples

TASKS = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "deploy",
                "defer",
                "refuse",
                "look",
                "stop",
                "force",
                "cancel",
                "stopping",
                "end",
                "resume",
                "add",
            ]
        ),
        st.lists(
            st.sampled_from(["absent", "waiting", "executing", "good", "bad", "gone"]),
            min_size=3,
            max_size=3,
        ),
        st.booleans(),
    ),
    max_size=12,
)


def step(harness: Harness, fence: Fence, name: str, phases: list[str]) -> Fence:
    store, now = harness.store, harness.clock.forward(7)
    if name in ("deploy", "defer", "refuse"):
        harness.deploy(
            fence,
            limit=2,
            state={"deploy": "created", "defer": "deferred", "refuse": "refused"}[name],
        )
    elif name == "look":
        found = []
        for task in store.polls.found_state(fence).tasks:
            phase = phases[task.index % TASKS]
            end = {"good": good_end(now), "bad": bad_end(now)}.get(phase)
            kind = Phase.ENDED if end else Phase(phase)
            found.append(
                seen(
                    task,
                    kind,
                    now,
                    changed_at=now,
                    uid=task.uid,
                    end=end,
                    counters=Counters(task.index),
                )
            )
        harness.poll(fence, found)
    elif name in ("stop", "force"):
        store.stops.record_stop(fence.run_id, harness.stop(force=name == "force"), name)
    elif name == "cancel":
        store.stops.cancel_queued(fence, now)
    elif name == "stopping":
        store.stops.mark_stopping(
            fence, [task.task_id for task in store.tasks.list_tasks(fence.run_id)]
        )
    elif name == "end":
        try:
            harness.end(fence)
        except NotInThisState:
            assert store.tasks.count_tasks(fence.run_id).alive
    elif name == "add":
        key = f"{fence.attempt}/{'-'.join(phases)}"
        try:
            added = store.additions.add_tasks(fence.run_id, key, [{"part": key}] * 2, fence)
            assert added == store.additions.add_tasks(fence.run_id, key, [{"part": key}] * 2)
        except NotInThisState:
            row = harness.row(fence)
            assert row.stop is not None or row.status.terminal
    elif name == "resume":
        return harness.resume(fence, Owner("w", f"chain-{fence.attempt + 1}"), rerun=True)
    return fence


def check(harness: Harness, fence: Fence) -> None:
    """Check the invariants after every step."""
    store = harness.store
    tasks = store.tasks.list_tasks(fence.run_id, superseded=True)
    transitions = store.runs.transitions(fence.run_id, limit=10_000)
    by_task: dict[int | None, list[tuple[str | None, str, int]]] = defaultdict(list)
    for one in transitions:
        by_task[one.task_id].append((one.from_status, one.to_status, one.attempt))
    for task in tasks:
        chain = by_task.pop(task.task_id, [])
        status = TaskStatus.QUEUED
        for before, after, _ in chain:
            assert before == status
            assert task_may_become(status, TaskStatus(after))
            status = TaskStatus(after)
        assert status is task.status
        assert task.superseded_by is None or task.status.terminal
        assert (task.ended_at is not None) == task.status.terminal
    current = [task.task_index for task in tasks if task.superseded_by is None]
    assert sorted(current) == list(range(len(current)))
    assert len(current) >= TASKS
    run: str | None = None
    last = 0
    for before, after, attempt in by_task.pop(None):
        assert before == run
        if run is not None and attempt == last:
            assert run_may_become(RunStatus(run), RunStatus(after))
        run, last = after, attempt
    row = harness.row(fence)
    assert (row.status.value, row.attempt) == (run, fence.attempt)
    assert not row.status.terminal or not store.tasks.count_tasks(fence.run_id).alive
    assert (row.outcome is not None) == row.status.terminal == (row.ended_at is not None)
    assert by_task == {}
    assert [e.seq for e in store.events.events_after(0)] == list(
        range(1, len(store.events.events_after(0)) + 1)
    )
    assert store.events.events_after(0)[-1].body["status"] == row.status


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_rules_that_no_sequence_breaks(steps: list[tuple[str, list[str], bool]]) -> None:
    with TemporaryDirectory() as folder:
        clock = Clock()
        store = open_store(make_tables(f"sqlite:///{folder}/state.db"), clock=clock)
        try:
            harness = Harness(store, clock)
            fence = harness.run(tasks=TASKS)
            for name, phases, twice in steps:
                before = fence
                fence = step(harness, fence, name, phases)
                if twice and before == fence:
                    step(harness, fence, name, phases)
                check(harness, fence)
        finally:
            store.close()

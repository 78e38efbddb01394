"""Which runs were not polled in time, and how many."""

from __future__ import annotations

from datetime import timedelta

from crawler_lifecycle.domain.audits.overdue import OverduePolls, overdue_before
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.polls import Poll
from crawler_lifecycle.ports.runs import Fence
from tests.contracts.store.harness import OWNER, Harness, request, seen


def executing(harness: Harness, name: str) -> Fence:
    """A run that was polled now; its next poll is due in a minute."""
    fence = harness.executing(name)
    tasks = harness.store.polls.found_state(fence).tasks
    harness.poll(fence, [seen(t, Phase.EXECUTING, harness.clock.now, uid=t.uid) for t in tasks])
    return fence


def found(harness: Harness, **more: object) -> list[int]:
    before = overdue_before(harness.clock.now)
    return [run.run_id for run in harness.store.overdue.overdue_runs(before, **more)]  # type: ignore[arg-type]


def test_a_poll_is_overdue_half_a_minute_after_it_was_due(harness: Harness) -> None:
    fence = executing(harness, "r1")
    polled_at, due = harness.clock.now, harness.clock.now + timedelta(minutes=1)
    harness.clock.forward(90)
    assert found(harness) == []
    assert harness.store.overdue.overdue_polls(harness.clock.now) == OverduePolls()
    harness.clock.forward(0.001)
    [run] = harness.store.overdue.overdue_runs(overdue_before(harness.clock.now))
    assert (run.run_id, run.due_at, run.planned) == (fence.run_id, due, True)
    assert harness.store.overdue.overdue_polls(harness.clock.now) == OverduePolls(
        1, due, fence.run_id, polled_at
    )


def test_ended_runs_have_no_look_to_come(harness: Harness) -> None:
    ended = executing(harness, "r1")
    harness.finish(ended)
    harness.clock.forward(86400)
    assert found(harness) == []
    assert harness.store.overdue.overdue_polls(harness.clock.now).count == 0


def test_a_stop_that_waits_for_its_proof_is_polled_at_as_well(harness: Harness) -> None:
    fence = executing(harness, "r1")
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    harness.clock.forward(91)
    assert found(harness) == [fence.run_id]


def test_runs_without_a_planned_poll_count_from_the_last_change_of_their_row(
    harness: Harness,
) -> None:
    """The first has no owner, nothing of the second exists, the third is waiting to start, the
    fourth is being stopped.
    """
    reserved, _ = harness.store.initiation.reserve_run(request(), "reserved")
    young, waits, stopped = (
        harness.run("young"),
        harness.deployed("waits"),
        harness.deployed("stopped"),
    )
    harness.store.stops.record_stop(stopped.run_id, harness.stop(), "s1")
    all_of_them = [reserved.run_id, young.run_id, waits.run_id, stopped.run_id]
    harness.clock.forward(30)
    assert found(harness) == []
    harness.clock.forward(1)
    assert found(harness) == all_of_them
    assert not any(
        run.planned for run in harness.store.overdue.overdue_runs(overdue_before(harness.clock.now))
    )
    assert harness.store.overdue.overdue_polls(harness.clock.now).count == 0, "no poll was planned"
    harness.store.deployment.note_waiting(waits, "the quota")
    assert found(harness) == [n for n in all_of_them if n != waits.run_id]


def test_pages_follow_each_other_oldest_first(harness: Harness) -> None:
    wanted = []
    for n in range(7):
        wanted.append(executing(harness, f"r{n}").run_id if n % 2 else harness.run(f"r{n}").run_id)
        harness.clock.forward(0 if n in (2, 4) else 100)
    harness.clock.forward(1000)
    before = overdue_before(harness.clock.now)
    every = harness.store.overdue.overdue_runs(before)
    assert sorted(run.run_id for run in every) == wanted
    assert every == sorted(every, key=lambda run: (run.due_at, run.run_id))
    paged, after = [], None
    while page := harness.store.overdue.overdue_runs(before, after, 2):
        paged += page
        after = (page[-1].due_at, page[-1].run_id)  # type: ignore[assignment]
    assert paged == every


# --- whom to wake


def test_a_run_tells_owner_state_and_last_poll(harness: Harness) -> None:
    reserved, _ = harness.store.initiation.reserve_run(request(), "reserved")
    young = harness.run("young")
    running = harness.executing("running")
    polled_at = harness.clock.now
    harness.clock.forward(60)
    ended = harness.executing("ended")
    harness.finish(ended)
    stopping = harness.deployed("stopping")
    harness.store.stops.record_stop(stopping.run_id, harness.stop(), "s1")

    asked = [running.run_id, ended.run_id, reserved.run_id, young.run_id, stopping.run_id]
    targets = [harness.store.wake_ups.wake_target(run_id) for run_id in asked]
    found = [target for target in targets if target is not None]
    assert [one.run.run_id for one in found] == asked
    assert [one.workflow_id for one in found] == [OWNER.workflow_id] * 2 + [None] + [
        OWNER.workflow_id
    ] * 2
    assert [one.ended for one in found] == [False, True, False, False, False]
    assert [one.verified_at for one in found] == [
        polled_at,
        polled_at + timedelta(seconds=60),
        None,
        None,
        None,
    ]
    assert harness.store.wake_ups.wake_target(999_999) is None
    # The last poll was by a clock that is 6 s ahead, so what it saw is unknown.
    harness.clock.forward(-66)
    [state] = [harness.store.wake_ups.wake_target(running.run_id)]
    assert state is not None
    assert state.verified_at is None


def test_polls_without_the_workflow_keep_its_interval(harness: Harness) -> None:
    """While nobody orders polls, the run is due again after each poll, and is not reported as
    overdue.
    """
    fence = executing(harness, "r1")
    store, minute = harness.store, timedelta(minutes=1)

    def unverified() -> list[int]:
        return [one.run.run_id for one in store.wake_ups.unverified(harness.clock.now)]

    harness.clock.forward(59)
    assert unverified() == []
    for _ in range(3):
        harness.clock.forward(1.001)
        assert unverified() == [fence.run_id]
        tasks = store.polls.found_state(fence)
        seen_now = [
            seen(task, Phase.EXECUTING, harness.clock.now, uid=task.uid) for task in tasks.tasks
        ]
        store.polls.record_at_once(
            fence, Poll(harness.clock.now, 0.1, seen_now), [], "look", tasks, None
        )
        assert unverified() == []
        harness.clock.forward(minute.total_seconds() - 1)
        assert unverified() == []
        assert store.overdue.overdue_polls(harness.clock.now).count == 0
    assert found(harness) == [fence.run_id], (
        "the search for lost workflows still sees that its workflow is late"
    )

"""The numbers of new runs and tasks can be brought forward, and never go back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.contracts.store.world import World


def test_new_runs_begin_above_a_number_and_nothing_is_left_of_it(world: World) -> None:
    first = world.run("r1").run_id
    [task] = world.store.tasks.list_tasks(first)
    assert world.store.run_numbers.newest_run_id() == first
    assert not world.store.run_numbers.begin_run_ids_above(first), "it is known"
    assert world.store.run_numbers.begin_run_ids_above(first + 40)
    assert not world.store.run_numbers.begin_run_ids_above(first + 40), "again: nothing changes"
    assert not world.store.run_numbers.begin_run_ids_above(first + 7), "it never goes back"
    assert world.store.run_numbers.newest_run_id() == first
    assert set(world.store.audits.existing_runs(range(first + 100))) == {first}
    second = world.run("r2").run_id
    assert second > first + 40
    [other] = world.store.tasks.list_tasks(second)
    assert other.task_id >= task.task_id + 40 * 100_000, "the tasks of runs that are missing had numbers as well"


def test_an_empty_database_begins_above(world: World) -> None:
    newest = world.store.run_numbers.newest_run_id()
    assert newest == 0
    assert world.store.run_numbers.begin_run_ids_above(10_000_000)
    assert world.run("r1").run_id > 10_000_000
    assert not world.store.run_numbers.begin_run_ids_above(0)


def test_many_bring_it_forward_at_once(world: World) -> None:
    begin = world.run("r1").run_id
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(world.store.run_numbers.begin_run_ids_above, [begin + n for n in range(1, 33)]))
    assert world.run("r2").run_id > begin + 32
    assert len(world.store.runs.list_runs()) == 2

"""The queue: slots, order, and waiting tasks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crawler_lifecycle.domain.task import Phase
from tests.clusters.local.local_fixture import RUN, SLEEP, Fixture, wait_until
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

#: Reports that it executes, and ends when it is told to.
HELD = """
import os, time
files = os.environ["CRAWL_FILES_DIR"]
def write(text):
    with open(os.environ["CRAWL_STATE_DIR"] + "/../order", "a") as file:
        file.write(text + " ")
write(os.environ["CRAWL_TASK_INDEX"])
while not os.path.exists(files + "/go"):
    time.sleep(0.01)
write("done")
"""


def phases(fixture: Fixture, count: int) -> list[str]:
    return [
        seen.phase
        for seen in fixture.cluster.poll(
            run_ref(RUN), [fixture.ref(i) for i in range(count)]
        ).observations
    ]


def executing_runs(fixture: Fixture, count: int) -> list[int]:
    """Return which of the first ``count`` runs have a task 0 that executes."""
    return [
        number
        for number in range(count)
        if fixture.cluster.poll(run_ref(RUN + number), [fixture.ref()]).observations[0].phase
        is Phase.EXECUTING
    ]


def test_never_more_than_slots_execute_and_the_first_come_are_first(
    make_fixture: Callable[..., Fixture],
) -> None:
    fixture = make_fixture(slots=2)

    def words() -> list[str]:
        file = fixture.state / "state" / str(run_ref(RUN)) / "order"
        return file.read_text().split() if file.exists() else []

    for index in range(2):
        fixture.deploy(HELD, range(index, index + 1))
        wait_until(lambda index=index: words() == [str(number) for number in range(index + 1)])
    for index in range(2, 8):
        fixture.queue(index, HELD)
    for index in range(8):
        fixture.until(Phase.EXECUTING, index)
        waiting = max(0, 6 - index)
        running = 8 - index - waiting
        assert (
            phases(fixture, 8)
            == [Phase.ENDED] * index + [Phase.EXECUTING] * running + [Phase.WAITING] * waiting
        )
        (fixture.folder(index) / "files/go").touch()
        fixture.until_on_file(index)
        wait_until(lambda index=index: len(words()) == min(8, index + 3) + index + 1)
    assert words() == [
        *"01",
        *" ".join(f"done {index}" for index in range(2, 8)).split(),
        "done",
        "done",
    ]
    assert not list((fixture.state / "live").iterdir())


def test_the_next_free_slot_is_for_the_most_urgent(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=1)
    fixture.deploy(HELD)
    fixture.until(Phase.EXECUTING)
    for number, priority in [(1, 5), (2, 3), (3, 1), (4, 5), (5, 1)]:
        fixture.run = RUN + number
        fixture.deploy(HELD, priority=priority)
        wait_until(lambda: (fixture.poll().reason or "").startswith("waiting: "))
        time.sleep(0.2)  # it writes that it waits, then it sleeps in its queue
    for number in (0, 3, 5, 2, 1, 4):
        fixture.run = RUN + number
        fixture.until(Phase.EXECUTING)
        assert executing_runs(fixture, 6) == [number]
        (fixture.folder() / "files/go").touch()
        fixture.until_on_file()


#: Writes its run into one file for all.
NOTED = """
import os
with open(os.environ["CRAWL_STATE_DIR"] + "/../../order", "a") as file:
    file.write(os.environ["CRAWL_RUN_ID"] + " ")
"""


def test_runs_of_the_same_priority_take_turns(make_fixture: Callable[..., Fixture]) -> None:
    """One run has queued all its tasks when another one adds a few."""
    fixture = make_fixture(slots=1)
    fixture.fill(1)
    for index in range(1, 13):
        fixture.queue(index, NOTED)
    fixture.run = RUN + 1
    for index in range(4):
        fixture.queue(index, NOTED)
    fixture.cluster.kill(run_ref(RUN), fixture.ref(0))
    order = fixture.state / "state" / "order"
    wait_until(lambda: order.exists() and len(order.read_text().split()) == 16)
    mine, theirs = str(RUN), str(RUN + 1)
    assert order.read_text().split()[:9] == [mine, mine, *[theirs, mine] * 3, theirs]


def test_a_run_finds_room_to_wait_beside_another_one(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=1, max_waiting=8)
    fixture.fill(1)
    assert [one.state for one in fixture.deploy(SLEEP, range(1, 7))] == ["created"] * 4 + [
        "deferred"
    ] * 2
    for n, created in ((1, 2), (2, 1), (3, 1)):
        fixture.run = RUN + n
        assert [one.state for one in fixture.deploy(SLEEP, range(6))].count("created") == created


def test_who_is_less_urgent_leaves_places_to_wait_in(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=1, max_waiting=6)
    fixture.fill(1)
    found = []
    for index, priority in enumerate((5, 5, 3, 3, 3, 1, 1, 1), start=1):
        (answer,) = fixture.deploy(SLEEP, range(index, index + 1), priority=priority)
        found.append((priority, answer.state))
    d, c = "deferred", "created"
    assert found == [(5, c), (5, d), (3, c), (3, c), (3, d), (1, c), (1, c), (1, d)]


def test_the_slot_stays_taken_while_the_crawler_lives_without_its_supervisor(
    make_fixture: Callable[..., Fixture],
) -> None:
    fixture = make_fixture(slots=1)
    fixture.fill(1)
    fixture.queue(1)
    fixture.crawler_process()
    fixture.slay(fixture.supervisor())
    time.sleep(0.4)  # it tries ten times a second
    assert fixture.poll(1).reason == "waiting: 1 of 1 slots in use"
    fixture.cluster.kill(run_ref(RUN), fixture.ref(0))
    fixture.until(Phase.EXECUTING, 1)


def test_a_crawler_that_lost_all_who_watch_it_keeps_nobody_waiting(
    make_fixture: Callable[..., Fixture],
) -> None:
    """It holds no slot of its own, because a hidden process would hold it for ever."""
    fixture = make_fixture(slots=1)
    fixture.fill(1)
    fixture.queue(1)
    crawler = fixture.crawler_process()
    fixture.slay(fixture.supervisor())
    fixture.slay(fixture.runner())
    fixture.until(Phase.EXECUTING, 1)
    assert crawler.alive()
    assert phases(fixture, 2) == [Phase.EXECUTING, Phase.EXECUTING]


def test_more_than_the_allowed_number_of_waiting_tasks_is_deferred(
    make_fixture: Callable[..., Fixture],
) -> None:
    fixture = make_fixture(slots=1, max_waiting=4)
    fixture.fill(1)
    states = [answer.state for answer in fixture.deploy(SLEEP, range(5))]
    assert states == ["existing", "created", "created", "deferred", "deferred"]
    [deferred] = fixture.deploy(SLEEP, range(4, 5))
    assert deferred.reason == "2 tasks are already waiting for a slot"
    assert fixture.poll(4).phase is Phase.ABSENT
    fixture.cluster.stop(run_ref(RUN), fixture.ref(1))
    fixture.until(Phase.ENDED, 1)
    assert fixture.deploy(SLEEP, range(4, 5))[0].state == "created"


def test_waiting_tasks_that_died_do_not_count(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=1, max_waiting=1)
    fixture.fill(1)
    fixture.deploy(SLEEP, range(1, 2))
    fixture.until(Phase.WAITING, 1)
    fixture.slay(fixture.supervisor(1))
    assert fixture.poll(1).phase is Phase.GONE
    assert fixture.deploy(SLEEP, range(2, 3))[0].state == "created"


def test_a_dead_head_of_the_queue_holds_nobody_up(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=1)
    fixture.fill(1)
    fixture.queue(1)
    fixture.queue(2)
    fixture.slay(fixture.supervisor(1))
    fixture.cluster.kill(run_ref(RUN), fixture.ref(0))
    fixture.until(Phase.EXECUTING, 2)


def test_a_bare_signal_is_no_stop(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=1)
    fixture.fill(1)
    fixture.queue(1)
    for index in range(2):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            fixture.supervisor(index).send(number)
    time.sleep(0.3)
    assert phases(fixture, 2) == [Phase.EXECUTING, Phase.WAITING]


def test_a_supervisor_is_small(fixture: Fixture) -> None:
    fixture.fill(1)
    fields = Path(f"/proc/{fixture.supervisor().pid}/statm").read_text().split()
    assert int(fields[1]) * os.sysconf("SC_PAGESIZE") < 25 * 2**20

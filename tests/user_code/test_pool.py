"""The number of processes, who gets one, and when one is replaced."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from crawler_lifecycle.features.managers.domain.manager import Facts, Start
from crawler_lifecycle.features.user_code.pool import Host, Hosts
from crawler_lifecycle.ports.protocols import UserCodeFailed
from tests.user_code.user_code_support import Fixture, answer, generator, manager, nothing, until


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def pid_of(hosts: Hosts, plan: str, manager_id: int, generation: int = 1, attempt: int = 1) -> int:
    """Use the manager's process for one page, as an activity does. Returns its number."""
    with hosts.use(plan, manager_id, attempt, generation, nothing) as host:
        if host.generation is None:
            host.begin(Start(manager_id, "m", "f", attempt=attempt), generation, answer)
        host.page(0, answer)
        host.settled = True
        return host.process.pid


def test_a_manager_keeps_its_process_while_it_fits(fixture: Fixture) -> None:
    plan = generator(fixture.folder, "yield {'page': 1}")
    with fixture.hosts() as hosts:
        first = pid_of(hosts, plan, 1)
        assert pid_of(hosts, plan, 1) == first
        assert pid_of(hosts, plan, 2) != first, "another manager's"
        second = pid_of(hosts, plan, 1, generation=2)
        assert second != first, "another worker had the object meanwhile"
        assert pid_of(hosts, plan, 1, generation=2, attempt=2) != second, "another attempt"
        hosts.retire({plan: "of another source"})
        third = pid_of(hosts, plan, 2)
        assert pid_of(hosts, plan, 2) == third
        assert hosts.state() == {"live": 2, "at_work": 0, "most": 50, "started": 5, "parked": 0}


def test_the_one_idle_longest_makes_room_and_comes_back(fixture: Fixture) -> None:
    fixture.processes = 2
    plan = generator(fixture.folder, "yield {'page': 1}")
    with fixture.hosts() as hosts:
        first, second = pid_of(hosts, plan, 1), pid_of(hosts, plan, 2)
        assert pid_of(hosts, plan, 1) == first
        pid_of(hosts, plan, 3)
        assert (hosts.state()["live"], hosts.state()["parked"]) == (2, 1)
        assert pid_of(hosts, plan, 1) == first, "the second one was idle longest"
        assert pid_of(hosts, plan, 2) != second


def test_who_finds_no_room_waits_until_one_is_idle(fixture: Fixture) -> None:
    fixture.processes = 1
    plan = generator(fixture.folder, "yield {'page': 1}")
    asked = threading.Event()
    with fixture.hosts() as hosts:
        with hosts.use(plan, 1, 1, 0, nothing):
            waiting = threading.Thread(target=lambda: pid_of(hosts, plan, 2))
            waiting.start()

            def give_up() -> None:
                asked.set()
                raise RuntimeError("the activity was cancelled")

            with (
                pytest.raises(RuntimeError, match="was cancelled"),
                hosts.use(plan, 3, 1, 0, give_up),
            ):
                pass
            assert asked.is_set()
            assert waiting.is_alive()
        waiting.join()
        assert hosts.state()["started"] == 2


def test_what_is_not_settled_is_given_up(fixture: Fixture) -> None:
    """Its object considers done what nobody has recorded."""
    plan = generator(fixture.folder, "yield {'page': 1}")
    with fixture.hosts() as hosts:
        first = pid_of(hosts, plan, 1)
        with suppress(OSError), hosts.use(plan, 1, 1, 1, nothing) as host:
            host.cycle(Facts(1, 1, 0.0, 1), answer)
            raise OSError("the database is gone")
        assert not host.process.lives()
        assert pid_of(hosts, plan, 1) != first


def test_an_activity_that_is_cancelled_ends_the_call_under_way(fixture: Fixture) -> None:
    plan = manager(
        fixture.folder,
        "def workflow_loop(self):\n    print('there', flush=True)\n    time.sleep(3600)",
    )
    with fixture.hosts() as hosts:

        def alive() -> None:
            if found and "there" in found[0].process.output.newest():
                raise RuntimeError("cancelled")

        found: list[Host] = []
        with hosts.use(plan, 1, 1, 0, alive) as host:
            host.begin(Start(1, "m", "f"), 1, answer)
            found.append(host)
            with pytest.raises(RuntimeError, match="cancelled"):
                host.cycle(Facts(1, 1, 0.0, 1), answer)
            assert not host.process.lives()


def test_the_end_of_the_worker_ends_all_of_them(fixture: Fixture) -> None:
    plan = generator(fixture.folder, "time.sleep(3600)\nyield {}")
    told: list[str] = []

    def work() -> None:
        try:
            pid_of(hosts, plan, 1)
        except UserCodeFailed as failed:
            told.append(str(failed))

    with fixture.hosts() as hosts:
        working = threading.Thread(target=work)
        working.start()
        until(lambda: hosts.state()["started"])
    working.join()
    assert told
    assert hosts.state()["live"] == 0


def test_who_leaves_sends_nobody_back_here(fixture: Fixture) -> None:
    """Managers 5 and 6 also come back here: the process of one was ended for another's, the other's
    died.
    """
    plan = manager(fixture.folder, "")
    fixture.processes = 3
    with fixture.hosts() as hosts:
        for manager_id in (4, 5, 6, 7):
            pid_of(hosts, plan, manager_id)
        assert hosts.queue == hosts.own_queue
        hosts.drop(4)
        with hosts.use(plan, 6, 1, 1, nothing) as host:
            host.settled = False
        with hosts.use(plan, 8, 1, 0, nothing):
            assert hosts.leave() == [5, 6, 7, 8]
        assert hosts.queue is None


def test_what_was_printed_is_told_once_and_without_secrets(fixture: Fixture) -> None:
    """This includes a process that was killed for its output; lines are complete while more may
    come.
    """
    body = "print('password=hunter2 and more')\nprint('\\x1b[2J', end='', flush=True)\nyield {}\n"
    plan, dying = (
        generator(fixture.folder, body),
        generator(fixture.folder, "print('last')\nos._exit(3)\nyield {}\n"),
    )
    with fixture.hosts() as hosts:
        pid_of(hosts, plan, 1)
        assert hosts.printed(1) == "password=[redacted] and more\n"
        assert hosts.printed(1) == ""
        with suppress(UserCodeFailed):
            pid_of(hosts, dying, 2)
        assert hosts.printed(2) == "last\n"
        with hosts.use(plan, 1, 1, 1, nothing) as host:
            host.settled = False  # it is abandoned
        assert hosts.printed(1) == "\\x1b[2J"

"""What every observer does, whatever it watches."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.domain.task import Phase
from tests.clusters.local.local_fixture import wait_until
from tests.contracts.observer.observer_harness import RUN, Harness, SpoolHarness, Told

OVER = (Phase.ENDED, Phase.GONE)


def test_a_start_and_an_end_are_told_at_once(harness: Harness) -> None:
    with Told(harness.observer()).watching() as told:
        told.after(lambda: (harness.start(), harness.until(Phase.EXECUTING)))
        told.after(lambda: (harness.finish(), harness.until(*OVER)))
        assert {run for run, _ in told.calls} == {RUN}
        assert set(told.tasks) == {frozenset({(0, 1)})}, "its index and its attempt"
        # A report means that it has happened: a later poll sees it.
        assert harness.phase() in OVER


def test_an_end_behind_our_back_is_told(harness: Harness) -> None:
    harness.start()
    harness.until(Phase.EXECUTING)
    with Told(harness.observer()).watching() as told:
        told.quiet()
        told.after(harness.slay)
        harness.until(*OVER)


def test_a_task_that_vanishes_is_told(harness: Harness) -> None:
    harness.start()
    harness.until(Phase.EXECUTING)
    with Told(harness.observer()).watching() as told:
        told.quiet()
        told.after(harness.take_away)
        harness.until(*OVER)


def test_a_task_that_waits_is_told_and_told_again_when_it_starts(harness: Harness) -> None:
    harness.start(index=0)
    harness.until(Phase.EXECUTING, index=0)
    with Told(harness.observer()).watching() as told:
        told.quiet()
        told.after(lambda: harness.start(index=1))
        assert harness.phase(1) is Phase.WAITING
        assert told.tasks[-1] == frozenset({(1, 1)})
        told.after(lambda: (harness.slay(0), harness.until(Phase.EXECUTING, index=1)))
        assert {task for tasks in told.tasks for task in tasks or ()} == {(0, 1), (1, 1)}


def test_a_task_that_comes_and_goes_at_once_is_told(harness: Harness) -> None:
    with Told(harness.observer()).watching() as told:
        told.after(lambda: (harness.start(0), harness.until(*OVER)))


def test_nothing_is_told_while_nothing_happens(harness: Harness) -> None:
    harness.start()
    harness.until(Phase.EXECUTING)
    with Told(harness.observer()).watching() as told:
        wait_until(lambda: told.observer.health().watched == 1)
        count = told.quiet()
        time.sleep(1.3)
        assert len(told.calls) == count
        assert told.observer.health().watched == 1


def test_what_happened_while_nobody_watched_is_told_first(harness: Harness) -> None:
    observer = harness.observer()
    with Told(observer).watching():
        harness.start()
        harness.until(Phase.EXECUTING)
    assert not observer.health().up
    ended_after = datetime.now(UTC)
    harness.slay()
    harness.until(*OVER)
    told = Told(observer)
    with told.watching():
        wait_until(lambda: any(run == RUN and at >= ended_after for run, at in told.calls))


def test_every_observer_notices_everything(harness: Harness) -> None:
    first, second = Told(harness.observer()), Told(harness.observer())
    with first.watching(), second.watching():
        second.after(lambda: first.after(lambda: (harness.start(), harness.until(Phase.EXECUTING))))
        second.after(lambda: first.after(harness.slay))


def test_one_that_cannot_see_says_so_and_recovers(harness: Harness) -> None:
    observer = harness.observer()
    with Told(observer).watching() as told:
        harness.blind(observer)
        wait_until(lambda: not observer.health().up)
        assert observer.health().problem
        harness.heal(observer)
        wait_until(lambda: observer.health().up)
        told.after(lambda: (harness.start(), harness.until(Phase.EXECUTING)))


def test_it_ends_when_it_is_over_and_before_it_began(harness: Harness) -> None:
    over = threading.Event()
    over.set()
    observer = harness.observer()
    observer.watch(lambda *change: None, over)
    assert not observer.health().up


def test_a_spooled_task_that_began_after_the_processes_were_listed_is_not_gone(
    tmp_path: Path,
) -> None:
    harness = SpoolHarness(tmp_path)
    with closing(harness):
        harness.start()
        harness.until(Phase.EXECUTING)
        assert harness._spool._phase(harness._folder(0), alive=())[0] is Phase.EXECUTING
        harness.slay()
        assert harness._spool._phase(harness._folder(0), alive=())[0] is Phase.GONE

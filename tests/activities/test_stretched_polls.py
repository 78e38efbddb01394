"""Runs whose polls are late are polled less often, show this, and return to their schedule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from crawler_lifecycle.activities.reconciliation import PollAnswer, PollOrder
from crawler_lifecycle.domain.waiting import waiting
from crawler_lifecycle.gateway.runs.answers import standing_of
from crawler_lifecycle.ports.runs import Fence
from tests.activities.harness import Harness
from tests.support.fakes.cluster import Behaviour

EVERY_S = 60.0


class Worker:
    """A worker that polls one run, in time or late."""

    def __init__(self, harness: Harness) -> None:
        harness.cluster.behaviour = Behaviour(executes=None)
        self.harness, self.fence = harness, harness.started(2)
        self.late_s = 0.0
        self._poll: Any = harness.activities()["get_history_statuses_to_sync"]

    def poll(self, source: str = "look") -> float:
        """Poll the run. Return the seconds until its next poll."""
        self.harness.forward(EVERY_S)
        order = PollOrder(self.fence, EVERY_S, EVERY_S, source, late_s=self.late_s)
        answer: PollAnswer = self._poll(order)
        assert self.harness.row().next_look_at == answer.next_look_at
        assert answer.next_look_at - self.harness.clock() == timedelta(seconds=answer.gap_s)
        return answer.gap_s

    def sentence(self) -> str | None:
        return waiting(standing_of(self.harness.row(), self.harness.clock()))


def test_polls_come_less_often_while_work_waits_and_the_run_says_so(harness: Harness) -> None:
    worker = Worker(harness)
    assert (worker.poll(), worker.sentence()) == (EVERY_S, None)
    worker.late_s = EVERY_S / 4
    assert (worker.poll(), worker.sentence()) == (2 * EVERY_S, "polls 2 times their interval")
    assert (worker.poll("wake"), worker.sentence()) == (4 * EVERY_S, "polls 4 times their interval")
    assert [worker.poll() for _ in range(3)] == [480, 600, 600], "ten times at most"
    worker.late_s = 0.0
    gaps = [worker.poll() for _ in range(14)]
    assert gaps == sorted(gaps, reverse=True)
    assert (gaps[-1], worker.sentence()) == (EVERY_S, None)


def test_the_proof_of_a_stop_is_never_put_off(harness: Harness) -> None:
    worker = Worker(harness)
    worker.late_s = EVERY_S / 4
    assert worker.poll("stop") == EVERY_S


def test_what_else_a_run_waits_for_stays_on_record(harness: Harness) -> None:
    worker = Worker(harness)
    worker.late_s = EVERY_S / 4
    note(harness, worker.fence, "quota exceeded")
    assert worker.poll() == 2 * EVERY_S
    assert harness.row().waiting_for == "quota exceeded"
    note(harness, worker.fence, None)
    worker.poll()
    assert worker.sentence() == "polls 2 times their interval"


def note(harness: Harness, fence: Fence, text: str | None) -> None:
    with harness.store.polls._unit(fence) as unit:
        unit.update_run(waiting_for=text)


@pytest.mark.parametrize("what", ["a failed poll", "a late poll"])
def test_worse_news_comes_instead_of_the_stretch(harness: Harness, what: str) -> None:
    worker = Worker(harness)
    worker.late_s = EVERY_S / 4
    worker.poll()
    if what == "a late poll":
        harness.forward(300)
        assert "is missing" in str(worker.sentence())
    else:
        harness.store.polls.record_poll_error(worker.fence, "503")
        assert "has not answered" in str(worker.sentence())

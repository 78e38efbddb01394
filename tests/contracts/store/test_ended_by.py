"""Who ended a run: everything that distinguishes stopped, failed and good runs follows this, not
the outcome's word.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import pytest

from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.subjects import verdict as exit_of_wait
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED, run_subject
from crawler_lifecycle.domain.retries import NEVER, EndedTry, NextTry, Retries, next_try, resolved
from crawler_lifecycle.domain.run import LIMIT_STOPS, OUTCOMES, RunStatus, StopIntent
from crawler_lifecycle.domain.status_words import status_word
from crawler_lifecycle.domain.task import End, Phase
from crawler_lifecycle.features.webhooks.domain.alerts import alert_of
from crawler_lifecycle.gateway.ui.parts.charts import run_kind
from crawler_lifecycle.ports.runs import Fence, RunRow
from tests.support.servers import each_on_sqlite

from .harness import Harness, seen

CODES = (0, 1, 2, 5, 137)
#: A word that no other part uses.
OWN = "too_few_results"
#: Words that a crawler reports about itself, and that decide whether another try makes sense, or
#: whether its exit 0 is a success.
ABOUT_ITSELF = ("banned", *NEVER)
WORDS = sorted(OUTCOMES.difference(ABOUT_ITSELF))
POLICY = resolved(Retries(on=["interrupted", "evicted", "lost", "oom", "failed"]), None, Retries())


@dataclass(frozen=True)
class Told:
    """What each interface shows of an ended run."""

    status: RunStatus
    ended_by: str | None
    colour: str
    bar: str
    code: Exit | None
    alarm: bool
    attention: bool
    counted_stopped: int
    tried_again: bool


def ended(harness: Harness, request_id: str, end: End, stop: StopIntent | None = None) -> RunRow:
    fence: Fence = harness.executing(request_id, crawler=request_id, args={"n": request_id})
    if stop is not None:
        harness.store.stops.record_stop(fence.run_id, stop, "s", fence)
    tasks = harness.store.polls.found_state(fence).tasks
    harness.poll(
        fence, [seen(task, Phase.ENDED, harness.clock.now, uid=task.uid, end=end) for task in tasks]
    )
    return harness.end(fence)


def told(harness: Harness, row: RunRow) -> Told:
    [task] = harness.store.tasks.list_tasks(row.run_id)
    assert task.ended_by == row.ended_by
    document = asdict(row)
    [event] = harness.store.events.events_after(0, run_id=row.run_id)[-1:]
    assert event.body["ended_by"] == row.ended_by
    tried = EndedTry(task.outcome, task.exit_code, 0, "k", task.ended_by)
    attention = harness.store.runs.list_runs(attention=True, crawler=row.crawler)
    return Told(
        row.status,
        row.ended_by,
        status_word(document),
        run_kind(harness.store.runs.recent_runs([row.crawler], 1)[0]),
        exit_of_wait(document, "completed"),
        alert_of(EVENT_RUN_ENDED, run_subject(row.run_id), event.body, None).bad,
        bool(attention),
        harness.store.runs.ends_of(row.crawler, row.created_at - timedelta(hours=2), 5).stopped,
        isinstance(next_try(POLICY, tried, 0, 10), NextTry),
    )


@each_on_sqlite(CODES, [137])
def test_no_word_of_a_crawler_changes_who_ended_it(harness: Harness, value: int) -> None:
    expected = told(
        harness, ended(harness, OWN, End(value, finish_reason=OWN, finished_at=harness.clock.now))
    )
    assert expected.ended_by == EndedBy.CRAWLER
    assert not expected.counted_stopped
    assert expected.attention == expected.alarm == (value != 0)
    for n, word in enumerate(WORDS):
        row = ended(
            harness, f"{word.split()[0]}-{n}".replace("_", "-"), End(value, finish_reason=word)
        )
        assert row.outcome == word, "its word stays visible"
        assert told(harness, row) == expected, word
    for word in ABOUT_ITSELF:
        row = ended(harness, word.replace("_", "-"), End(value, finish_reason=word))
        assert row.ended_by == EndedBy.CRAWLER, word


@each_on_sqlite([None, OWN, *WORDS], [None, OWN, "finished"])
def test_a_stop_of_a_person_is_one_whatever_the_crawler_says(
    harness: Harness, value: str | None
) -> None:
    for code in (1, 137):
        row = ended(harness, f"r{code}", End(code, finish_reason=value), harness.stop())
        found = told(harness, row)
        assert (found.ended_by, found.colour, found.bar) == (EndedBy.PERSON, "stopped", "stopped")
        assert (found.code, found.alarm, found.attention) == (Exit.RUN_STOPPED, False, False)
        assert (found.counted_stopped, found.tried_again) == (1, False)


@pytest.mark.parametrize(
    ("end", "limit", "ended_by"),
    [
        *((End(137, signal=9), limit, EndedBy.LIMIT) for limit in LIMIT_STOPS),
        (End(137, signal=9), "failed", EndedBy.SERVICE),
        (End(137, signal=9, reason="OOMKilled"), None, EndedBy.LIMIT),
        (End(1, reason="Evicted"), None, EndedBy.LIMIT),
        (End(143, disruption="evicted", message="drained"), None, EndedBy.CLUSTER),
        (End(None, disruption="interrupted", message="its node is gone"), None, EndedBy.CLUSTER),
        (End(143, reason="DeadlineExceeded"), None, EndedBy.CLUSTER),
        (End(1, reason="StartError"), None, EndedBy.CRAWLER),
    ],
)
def test_ends_of_others_need_attention_and_are_told_apart(
    harness: Harness, end: End, limit: str | None, ended_by: EndedBy
) -> None:
    stop = None if limit is None else StopIntent(harness.clock.now, limit=limit)
    row = ended(harness, "r", end, stop)
    found = told(harness, row)
    assert (found.ended_by, found.colour, found.code) == (ended_by, "FAILED", Exit.RUN_FAILED)
    assert found.attention
    assert found.alarm
    assert not found.counted_stopped
    listed: dict[str, Any] = {"ended_by": ended_by.value}
    assert [one.run_id for one in harness.store.runs.list_runs(**listed)] == [row.run_id]
    assert harness.store.runs.list_runs(ended_by=EndedBy.PERSON) == []


def test_what_we_refused_or_lost_is_told(harness: Harness) -> None:
    refused = harness.run("refused")
    harness.deploy(refused, state="refused")
    assert harness.end(refused).ended_by == EndedBy.SERVICE
    lost = harness.executing("lost", crawler="lost")
    [task] = harness.store.polls.found_state(lost).tasks
    harness.poll(lost, [seen(task, Phase.GONE, harness.clock.now)])
    assert harness.end(lost).ended_by == EndedBy.CLUSTER
    queued = harness.run("queued", crawler="queued")
    harness.store.stops.record_stop(queued.run_id, harness.stop(), "s", queued)
    harness.store.stops.cancel_queued(queued, harness.clock.now)
    assert harness.end(queued).ended_by == EndedBy.PERSON

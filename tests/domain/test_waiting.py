"""What a run waits for, in one sentence: true for the record, with ages from the record."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.domain.waiting import (
    InLine,
    SiteInUse,
    Standing,
    ageless,
    position_in_line,
    retry_wait,
    site_in_use,
    span,
    waiting,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIVE = Standing("PROCESSING", NOW, tasks={"RUNNING": 2})
NEW = Standing("INITIALIZING", NOW, created_at=NOW - timedelta(seconds=95))
STOPPED = replace(LIVE, status="STOPPING", stop_at=NOW - timedelta(seconds=40), stop_by="ann")


def before(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


CASES: dict[str, tuple[Standing, str | None]] = {
    "a run that executes": (replace(LIVE, next_look_at=NOW + timedelta(minutes=1)), None),
    "a poll that is due now": (replace(LIVE, next_look_at=before(5)), None),
    "a poll that is overdue": (
        replace(LIVE, next_look_at=before(245)),
        "the poll that was due 4 min ago is missing: no worker takes it, or it hangs",
    ),
    "a cluster that does not answer": (
        replace(LIVE, look_error="503", look_error_since=before(250), next_look_at=before(250)),
        "the cluster has not answered for 4 min: 503",
    ),
    "a row of ours that cannot be": (
        replace(
            LIVE, look_error="task_history task_id 7: status is 'X'", look_error_since=before(30)
        ),
        "polls have failed for 30 s: task_history task_id 7: status is 'X'",
    ),
    "the scheduler service": (
        replace(NEW, waiting_for="scheduler service: 503", waiting_since=before(190)),
        "the scheduler service has accepted no deployment for 3 min: 503",
    ),
    "the cluster, before the start": (
        replace(NEW, waiting_for="cluster: timed out", waiting_since=before(61)),
        "the cluster has not answered for 1 min: timed out",
    ),
    "the code of a task": (
        replace(
            LIVE,
            tasks={"RUNNING": 4, "QUEUED": 2},
            waiting_for="code: task 3: the gateway answers 503: the bucket is away",
            waiting_since=before(250),
        ),
        "the code of task 3 has been missing for 4 min: the gateway answers 503: the bucket is away",
    ),
    "slots": (
        replace(NEW, waiting_for="waiting: 4 of 4 slots in use", waiting_since=before(20)),
        "waiting for 20 s: 4 of 4 slots in use",
    ),
    "a quota": (
        replace(NEW, waiting_for="Cluster quota full: cpu", waiting_since=before(8000)),
        "waiting for 2 h: Cluster quota full: cpu",
    ),
    "the start": (
        replace(NEW, waiting_for="the main task's start", waiting_since=before(3)),
        "waiting for the main task's start for 3 s",
    ),
    "a slot in its pool": (
        replace(NEW, waiting_for="a slot in pool shop-a", waiting_since=before(245)),
        "waiting for a slot in pool shop-a for 4 min",
    ),
    "its position in the line": (
        replace(
            NEW,
            waiting_for="a slot in pool shop-a",
            waiting_since=before(245),
            line=position_in_line(InLine("shop-a", 18, 20, urgent=12, older=40, about_s=370)),
        ),
        "waiting for a slot in pool shop-a (18 of 20 in use; 12 more urgent and 40 older tasks come first; "
        "about 6 min) for 4 min",
    ),
    "a line for later tasks": (
        replace(
            LIVE,
            tasks={"RUNNING": 1, "QUEUED": 3},
            waiting_for="a slot in pool a",
            waiting_since=before(70),
            line=position_in_line(InLine("a", 1, 1, older=1)),
        ),
        "3 tasks QUEUED for 1 min: waiting for a slot in pool a (1 of 1 in use; 1 older task comes first)",
    ),
    "a line that the cluster's refusal made": (
        replace(
            NEW,
            waiting_for="quota: pods",
            waiting_since=before(20),
            line=position_in_line(InLine("a", 1, 1)),
        ),
        "waiting for 20 s: quota: pods",
    ),
    "the next try": (
        replace(
            LIVE,
            tasks={"QUEUED": 1},
            waiting_for=retry_wait(NOW + timedelta(seconds=245), "retry (2 of 3): drained"),
        ),
        "retrying in 4 min (2 of 3): drained",
    ),
    "the next try, beside others": (
        replace(
            LIVE,
            tasks={"RUNNING": 1, "QUEUED": 2},
            waiting_for=retry_wait(before(3), "retry (1 of 3): drained"),
        ),
        "retrying in 0 s (1 of 3): drained; 2 tasks QUEUED in all",
    ),
    "a next try that has begun": (
        replace(
            LIVE, tasks={"RUNNING": 1}, waiting_for=retry_wait(before(3), "retry (1 of 3): drained")
        ),
        None,
    ),
    "nothing yet": (NEW, "its first tasks are being deployed"),
    "no workflow": (
        replace(NEW, owned=False),
        "waiting for a worker for 1 min; crawlctl doctor shows whether there is one",
    ),
    "max_parallel_tasks": (
        replace(LIVE, tasks={"RUNNING": 2, "QUEUED": 7}, max_parallel=2),
        "7 tasks QUEUED: at most 2 at once (max_parallel_tasks)",
    ),
    "the next poll": (
        replace(LIVE, tasks={"RUNNING": 1, "QUEUED": 1}),
        "1 task QUEUED until the next poll",
    ),
    "a line after a part of its tasks": (
        replace(LIVE, tasks={"RUNNING": 1, "QUEUED": 2}, line=position_in_line(InLine("a", 1, 1))),
        "2 tasks QUEUED: waiting for a slot in pool a (1 of 1 in use)",
    ),
    "deferred": (
        replace(
            LIVE,
            tasks={"RUNNING": 1, "QUEUED": 3},
            waiting_for="quota: pods",
            waiting_since=before(70),
        ),
        "3 tasks QUEUED for 1 min: quota: pods",
    ),
    "a word that nobody took back": (
        replace(LIVE, waiting_for="quota: pods", waiting_since=before(70)),
        None,
    ),
    "tasks that wait on the cluster": (
        replace(LIVE, tasks={"RUNNING": 4, "PENDING": 2}, reason="waiting: 4 of 4 slots in use"),
        "2 tasks PENDING: 4 of 4 slots in use",
    ),
    "a stop by a limit": (
        replace(STOPPED, stop_heard=False, stop_by="timed_out"),
        "stop requested by the limit timed_out 40 s ago: no workflow has acted on it yet",
    ),
    "a stop that nobody heard": (
        replace(STOPPED, stop_heard=False),
        "stop requested by ann 40 s ago: no workflow has acted on it yet",
    ),
    "a stop": (
        replace(STOPPED, unproved=[0, 3]),
        "stop requested by ann 40 s ago: 2 tasks (index 0, 3) not yet proved to have ended",
    ),
    "a stop of many": (
        replace(
            STOPPED,
            tasks={"STOPPING": 9, "CANCELLED": 5},
            unproved=[0, 1, 2, 3, 4],
            stop_force=True,
        ),
        "forced stop requested by ann 40 s ago: 9 tasks (index 0, 1, 2, 3, 4 …) not yet proved to have ended",
    ),
    "a stop during a deployment": (
        replace(STOPPED, tasks={"QUEUED": 1}),
        "stop requested by ann 40 s ago: 1 task may still be created",
    ),
    "a stop that is proved": (
        replace(STOPPED, tasks={"CANCELLED": 1}),
        "stop requested by ann 40 s ago: the verdict is missing",
    ),
    "a stop in a list": (
        replace(STOPPED, tasks=None),
        "stop requested by ann 40 s ago: its tasks are not proved to have ended",
    ),
    "a stop while the cluster is away": (
        replace(STOPPED, look_error="503", look_error_since=before(35)),
        "stop requested by ann 40 s ago: 2 tasks not yet proved to have ended; "
        "the cluster has not answered for 35 s: 503",
    ),
    "an end": (
        Standing("COMPLETED", NOW, waiting_for="x", look_error="y", next_look_at=before(999)),
        None,
    ),
    "an export": (
        Standing(
            "FAILED",
            NOW,
            undelivered=["run.ended is not delivered after 3 tries: 500", "the files: full"],
        ),
        "run.ended is not delivered after 3 tries: 500; the files: full",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sentences(name: str) -> None:
    standing, sentence = CASES[name]
    assert waiting(standing) == sentence


def test_without_a_clock_it_names_the_moment() -> None:
    standing = replace(CASES["a cluster that does not answer"][0], now=None)
    assert waiting(standing) == "the cluster has not answered since 2026-03-01T11:55:50Z: 503"
    overdue = replace(CASES["a poll that is overdue"][0], now=None)
    assert waiting(overdue) is None, "whether a poll is overdue is a question of now"


@pytest.mark.parametrize("name", CASES)
def test_ages_alone_make_no_other_sentence(name: str) -> None:
    standing = CASES[name][0]
    later = replace(
        standing,
        now=NOW + timedelta(hours=5),
        next_look_at=None if "due now" in name else standing.next_look_at,
    )
    first, second = waiting(replace(standing, next_look_at=later.next_look_at)), waiting(later)
    if standing.next_look_at is None or "overdue" in name:
        assert (first is None) == (second is None)
        assert ageless(first or "") == ageless(second or "")


def test_a_position_alone_makes_no_other_sentence() -> None:
    first, line = (
        CASES["its position in the line"][0],
        position_in_line(InLine("shop-a", 3, 20, about_s=0.2)),
    )
    assert ageless(waiting(first) or "") == ageless(waiting(replace(first, line=line)) or "")
    said = position_in_line(InLine("shop-a", 3, None, older=1, about_s=90, shut=True, shared=True))
    assert said == (
        "a slot in pool shop-a (none is left for it: all are reserved for other pools; of this project 3 in use; "
        "1 older task comes first; about 1 min)"
    )
    assert (
        position_in_line(InLine("a", 0, None, about_s=9, shared=True))
        == "a slot in pool a (about 9 s)"
    )
    assert position_in_line(InLine("default", 0, None)) == "a slot in pool default", (
        "what is zero or unknown is left out"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_spans(seconds: float, words: str) -> None:
    assert span(seconds) == words


moments = st.none() | st.datetimes(
    datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)
)
texts = st.none() | st.text(max_size=30)


@given(
    st.builds(
        Standing,
        status=st.sampled_from([str(status) for status in RunStatus]),
        now=moments,
        created_at=moments,
        owned=st.booleans(),
        waiting_for=texts,
        waiting_since=moments,
        look_error=texts,
        look_error_since=moments,
        next_look_at=moments,
        stop_at=moments,
        stop_by=texts,
        stop_force=st.booleans(),
        stop_heard=st.booleans(),
        tasks=st.none()
        | st.dictionaries(st.sampled_from([str(s) for s in TaskStatus]), st.integers(0, 9)),
        unproved=st.lists(st.integers(0, 9), max_size=7),
        reason=texts,
        max_parallel=st.none() | st.integers(1, 9),
        undelivered=st.lists(st.text(min_size=1, max_size=9), max_size=2),
    )
)
def test_every_standing_has_one(standing: Standing) -> None:
    sentence = waiting(standing)
    assert sentence is None or sentence
    live = standing.status not in ("COMPLETED", "FAILED")
    if live and standing.look_error is not None:
        assert sentence is not None
        assert standing.look_error in sentence
    if live and standing.stop_at is not None:
        assert "stop" in (sentence or "")
    if not live:
        assert sentence == ("; ".join(standing.undelivered) or None)


SITE = SiteInUse("shop.example", 2, 2, (17, 31))


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (SITE, "2 of 2 tasks (runs 17 and 31)"),
        (replace(SITE, tasks=1, runs=[17]), "1 of 2 tasks (run 17)"),
        (
            replace(SITE, tasks=9, runs=range(1, 10)),
            "9 of 2 tasks (runs 1, 2, 3, 4, 5 and 4 more)",
        ),
        (replace(SITE, shared=True, runs=[31]), "at most 2 tasks in this project (run 31)"),
        (
            replace(SITE, opens_at=NOW + timedelta(hours=10)),
            "2 of 2 tasks (runs 17 and 31); open from 22:00 UTC",
        ),
        (
            SiteInUse("shop.example", None, 0, opens_at=NOW + timedelta(days=1)),
            "open from 2026-03-02 12:00 UTC",
        ),
        (
            SiteInUse(
                *("shop.example", None, 0),
                closed_until=NOW + timedelta(minutes=4),
                closed_status=429,
                closed_by_run=17,
            ),
            "closed until 12:04 UTC after 429 (run 17)",
        ),
        (
            SiteInUse("shop.example", None, 1, [17], probes=True),
            "one task probes whether it answers again (run 17)",
        ),
        (SiteInUse("shop.example", None, 0), "a slot is free"),
        (
            SiteInUse(
                "shop.example", None, 0, closed_until=NOW + timedelta(days=1), closed_by="ann: sale"
            ),
            f"closed until {NOW + timedelta(days=1):%Y-%m-%d %H:%M} UTC by ann: sale",
        ),
        (
            SiteInUse("shop.example", None, 1, [17], closed_until=NOW + timedelta(minutes=4)),
            "1 task (run 17); closed until 12:04 UTC",
        ),
    ],
)
def test_the_site_that_a_run_waits_for(site: SiteInUse, said: str) -> None:
    assert site_in_use(site, NOW) == f"shop.example: {said}"


def test_a_run_that_waits_for_a_site() -> None:
    wait = replace(NEW, waiting_for="a slot of site shop.example", waiting_since=before(61))
    assert waiting(wait) == "waiting for a slot of site shop.example for 1 min"
    lines = [site_in_use(replace(SITE, tasks=n, runs=[n]), NOW) for n in (1, 2)]
    first = waiting(replace(wait, line=lines[0]))
    assert first == "waiting for 1 min: shop.example: 1 of 2 tasks (run 1)"
    assert ageless(first) == ageless(waiting(replace(wait, line=lines[1])) or "")
    some = replace(LIVE, tasks={"QUEUED": 2, "RUNNING": 1}, line=lines[0])
    assert waiting(some) == "2 tasks QUEUED: shop.example: 1 of 2 tasks (run 1)"


def test_a_run_that_executes_says_that_its_site_is_closed() -> None:
    said = "shop.example: closed until 12:10 UTC by ann"
    assert waiting(Standing("PROCESSING", tasks={"RUNNING": 1}, line=said)) == said

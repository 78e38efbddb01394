"""Scrapy Cloud's terms in ours: spiders, projects, units, outcomes, metadata (docs/managers.md)."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.ends import Ends, reading
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.task import End, TaskStatus, read_end
from crawler_lifecycle.features.managers.domain.manager import Job
from crawler_lifecycle.features.managers.domain.scrapy_cloud import (
    FAILED_HERE,
    Cloud,
    never_retried,
    run_request_of,
)
from crawler_lifecycle.features.managers.store.rows import job_metadata, outcome_of, state_of
from crawler_lifecycle.ports.runs import RunRow, TaskRow
from crawler_lifecycle.settings import Settings, UserCodeSettings

NOW = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
CATALOGUE = [
    CrawlerDefinition("shops"),
    CrawlerDefinition("eu-shops"),
    CrawlerDefinition("eu-news", spider="news"),
    CrawlerDefinition("us-news", spider="news"),
    CrawlerDefinition("prices-of-today", spider="prices"),
]
CLOUD = Cloud(projects={"7": "eu-", "us": "us-", "self": ""})


def run(
    status: RunStatus = RunStatus.COMPLETED,
    outcome: str | None = "finished",
    *,
    multi: bool = False,
) -> RunRow:
    request = {
        "args": {"url": "x", "retry_num": "2"},
        "settings": {"LOG_LEVEL": "INFO"},
        "tags": ["FLOW_ID=f"],
    }
    return RunRow(
        41, "u", "manager/3/9", "shops", "api", status, "completion", 2, NOW, NOW, outcome=outcome, cause="because",
        request=request, multi=multi, pages=8, items=5, started_at=NOW, ended_at=NOW,
    )  # fmt: skip


def task(outcome: str | None, exit_code: int | None = 0) -> TaskRow:
    return TaskRow(1, 41, 2, 0, TaskStatus.SUCCEEDED, outcome=outcome, exit_code=exit_code)


@pytest.mark.parametrize(
    ("spider", "project", "crawler"),
    [
        ("shops", None, "shops"),
        ("shops", "7", "eu-shops"),
        ("news", "7", "eu-news"),
        ("news", "us", "us-news"),
        ("prices", None, "prices-of-today"),
        ("eu-news", None, "eu-news"),
        ("shops", "self", "shops"),
    ],
)
def test_a_spider_is_the_crawler_of_that_name_or_the_only_one_that_has_it(
    spider: str, project: str | None, crawler: str
) -> None:
    assert CLOUD.crawler(spider, project, CATALOGUE).name == crawler


@pytest.mark.parametrize(
    ("spider", "project", "words"),
    [
        ("nobody", None, r"^spider: 'nobody' is unknown; no crawler has this name"),
        ("shops", "us", r"^spider: 'shops' is unknown; no crawler in project 'us'"),
        ("news", None, r"2 crawlers have this spider \(eu-news, us-news\); name one"),
        ("", None, "is unknown"),
        (
            "shops",
            "8",
            r"^project_id: '8' is not allowed; name one of LIFECYCLE_USER_CODE__PROJECTS, or",
        ),
    ],
)
def test_anything_else_is_an_unknown_spider_or_project(
    spider: str, project: str | None, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        CLOUD.crawler(spider, project, CATALOGUE)


def test_an_unknown_spider_is_told_with_the_problem_of_the_catalogue() -> None:
    with pytest.raises(InvalidRequest, match=r"shows all crawlers; crawlers\.yaml is not read$"):
        CLOUD.crawler("nobody", None, CATALOGUE, "crawlers.yaml is not read")


def test_units_are_so_many_times_a_unit() -> None:
    assert CLOUD.resources(3) == Resources(memory="3Gi")
    assert CLOUD.resources(None) == Resources(), "then the crawler's own count"
    small = Cloud(Resources(cpu="250m", memory="1.5Gi"))
    assert small.resources(1) == Resources(cpu="250m", memory="1.5Gi")
    assert small.resources(40) == Resources(cpu="10000m", memory="60Gi")
    assert Cloud(Resources(cpu="0.5", memory="100000000")).resources(10) == Resources(
        cpu="5", memory="1000000000"
    )
    for wrong in (0, -1, 1001, True, 1.5, "2"):
        with pytest.raises(
            InvalidRequest, match=r"^units: .* is not allowed; give a whole number from 1 to 1000"
        ):
            CLOUD.resources(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"^units: 1000 units are too many: resources.memory"):
        Cloud(Resources(memory="9000000T")).resources(1000)


def test_the_request_of_a_job() -> None:
    job = Job(
        "shops",
        {"url": "x"},
        {"LOG_LEVEL": "INFO"},
        ["JOBSEQ=0000000009.r2"],
        units=2,
        project_id="7",
        priority=1,
    )
    more = {
        "request_id": "manager/3/9.r2",
        "parent": "manager/m/f",
        "flow_id": "f",
        "requested_by": "ann",
    }
    asked = run_request_of(job, CLOUD.crawler(job.spider, job.project_id, CATALOGUE), CLOUD, **more)
    assert (asked.crawler, asked.request_id, asked.trigger) == ("eu-shops", "manager/3/9.r2", "api")
    assert (asked.args, asked.settings, asked.tags) == (job.spider_args, job.job_settings, job.tags)
    assert (asked.parent, asked.flow_id, asked.requested_by) == ("manager/m/f", "f", "ann")
    assert (asked.resources, asked.priority, asked.pool) == (Resources(memory="2Gi"), 1, None)
    assert (
        run_request_of(dataclasses.replace(job, pool="shop-a"), CATALOGUE[0], CLOUD).pool
        == "shop-a"
    )
    assert (
        run_request_of(dataclasses.replace(job, priority=None), CATALOGUE[0], CLOUD).priority == 3
    )


def test_states() -> None:
    said = {status: state_of(status) for status in RunStatus}
    assert said == {
        "INITIALIZING": "pending", "PROCESSING": "running", "STOPPING": "running",
        "COMPLETED": "finished", "FAILED": "finished",
    }  # fmt: skip


def test_the_outcome_is_that_of_the_task_of_a_single_process_run() -> None:
    stopped = run(RunStatus.FAILED, "cancelled")
    assert outcome_of(stopped, [task("cancel_timeout")]) == "cancel_timeout"
    assert outcome_of(run(RunStatus.FAILED, "deploy_failed"), [task(None)]) == "deploy_failed"
    assert (
        outcome_of(run(RunStatus.FAILED, "partial", multi=True), [task("cancel_timeout")])
        == "partial"
    )
    assert outcome_of(run(RunStatus.PROCESSING, None), [task("finished")]) is None
    judged = dataclasses.replace(run(RunStatus.FAILED, "coverage"), ended_by=EndedBy.SERVICE)
    assert outcome_of(judged, [task("finished")]) == "coverage"


def test_every_outcome_of_ours_that_is_a_failure_is_known() -> None:
    person, forced = StopIntent(NOW), StopIntent(NOW, force=True, escalated=True)
    limits = [
        StopIntent(NOW, limit=limit)
        for limit in ("start_timeout", "timed_out", "cancelled (stalled)")
    ]
    ends = [
        End(code, signal, reason, finish_reason=said, disruption=moved, verdict=verdict, told=True)
        for code in (None, 0, 1, 3, 4, 11, 13, 14, 15, 17, 18, 137, 143)
        for verdict in (None, code)
        for signal in (None, 9)
        for reason in (None, "OOMKilled", "Evicted", "DeadlineExceeded", "StartError", "PodFailed")
        for moved in (None, "evicted", "interrupted")
        for said in (None, "finished", "shutdown", "memusage_exceeded")
    ]
    how = reading(Ends("browsertrix"))
    found = {e.outcome for end in ends for stop in (None, person, forced, *limits)
             if (e := read_end(end, stop, how)).status is not TaskStatus.SUCCEEDED}  # fmt: skip
    assert found - {"finished"} | {"lost", "deploy_failed", "partial"} == FAILED_HERE


def test_what_is_never_retried() -> None:
    assert never_retried(EndedBy.PERSON, [None])
    assert never_retried(EndedBy.SERVICE, [])
    assert never_retried(EndedBy.CRAWLER, [None, "exit 17 is final"])
    assert never_retried(EndedBy.CRAWLER, ["exit 4 is final"])
    for ended_by in (EndedBy.LIMIT, EndedBy.CLUSTER, EndedBy.CRAWLER, None):
        assert not never_retried(
            ended_by, ["failed is not in retries.on", "3 of 3 tries made", None]
        ), ended_by


def test_metadata_has_these_keys_and_no_others() -> None:
    told = job_metadata(
        run(), [task("finished")], {"item_scraped_count": 5.0}, spider="news", units=2
    )
    assert told == {
        "state": "finished",
        "close_reason": "finished",
        "spider": "news",
        "spider_args": {"url": "x", "retry_num": "2"},
        "job_settings": {"LOG_LEVEL": "INFO"},
        "tags": ["FLOW_ID=f"],
        "units": 2,
        "running_time": 1772366400250,
        "finished_time": 1772366400250,
        "items": 5,
        "pages": 8,
        "errors": None,
        "scrapystats": {"item_scraped_count": 5.0},
        "run_id": 41,
        "attempt": 2,
        "cause": "because",
    }


def test_metadata_without_statistics_has_the_counters_under_scrapys_names() -> None:
    assert job_metadata(run())["scrapystats"] == {
        "response_received_count": 8,
        "item_scraped_count": 5,
    }
    odd = dataclasses.replace(
        run(RunStatus.INITIALIZING, None), request={"tags": "x", "args": 7}, started_at=None
    )
    told = job_metadata(odd)
    assert (told["state"], told["close_reason"], told["running_time"]) == ("pending", None, None)
    assert (told["tags"], told["spider_args"], told["spider"]) == ([], {}, "shops")


def test_an_installation_says_what_units_and_projects_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert UserCodeSettings().cloud() == Cloud()
    monkeypatch.setenv("LIFECYCLE_USER_CODE__PROJECTS", '{"7": "eu-", "self": ""}')
    monkeypatch.setenv("LIFECYCLE_USER_CODE__UNIT_CPU", "500m")
    monkeypatch.setenv("LIFECYCLE_USER_CODE__UNIT_MEMORY", "2Gi")
    found = Settings.load().user_code.cloud()
    assert found == Cloud(Resources("500m", "2Gi"), {"7": "eu-", "self": ""})
    monkeypatch.setenv("LIFECYCLE_USER_CODE__UNIT_CPU", "much")
    monkeypatch.setenv("LIFECYCLE_USER_CODE__PROJECTS", '{"7": "Eu "}')
    with pytest.raises(
        InvalidRequest,
        match=r"LIFECYCLE_USER_CODE__UNIT_CPU: 'much' .*LIFECYCLE_USER_CODE__PROJECTS: .*'Eu '",
    ):
        Settings.load()

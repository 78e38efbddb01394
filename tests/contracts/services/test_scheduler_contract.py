"""The contract of ``SchedulerClient``: over HTTP to the reference service, and the fake."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from crawler_lifecycle.adapters.scheduler import HttpSchedulerClient
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    DeploymentExpired,
    DeploymentRefused,
    MeantElsewhere,
    OtherPlace,
    SchedulerUnavailable,
)
from crawler_lifecycle.ports.protocols import SchedulerClient
from crawler_lifecycle.ports.runs import QueuedTask
from crawler_lifecycle.scheduler.app import create_app
from tests.contracts.services.services_harness import CRAWLERS, deployment, served
from tests.support.fakes.services import FakeCatalogue, FakeDeployer, FakeScheduler


@dataclass
class Scheduler:
    client: SchedulerClient
    deployer: FakeDeployer


@pytest.fixture(params=["http", "fake"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    deployer = FakeDeployer()
    if request.param == "fake":
        yield Scheduler(FakeScheduler(CRAWLERS, deployer), deployer)
        return
    with served(create_app(deployer, FakeCatalogue(CRAWLERS))) as url:
        client = HttpSchedulerClient(url, 120.0)
        yield Scheduler(client, deployer)
        client.close()


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_deployment_reaches_the_cluster_complete(scheduler: Scheduler, scheduled: bool) -> None:
    call = deployment(
        QueuedTask(70, 0, {}), QueuedTask(71, 1, {"page": "2"}), scheduled=scheduled, resume=True
    )
    answers = scheduler.client.deploy(call)
    assert [(a.index, a.state, a.name) for a in answers] == [
        (0, "created", "crawl-7-0-1"),
        (1, "created", "crawl-7-1-1"),
    ]
    assert all(a.uid for a in answers)
    [arrived] = scheduler.deployer.deployments
    assert [(t.task_id, t.index) for t in arrived.tasks] == [(70, 0), (71, 1)]
    assert arrived.tasks[0].args == {"site": "http://127.0.0.1", "key": "k"}
    assert arrived.tasks[1].args == {"site": "http://127.0.0.1", "key": "k", "page": "2"}
    assert arrived.settings == {"DOWNLOAD_DELAY": "1", "DEPTH_LIMIT": "9"}
    assert (arrived.resources.cpu, arrived.resources.memory) == ("500m", "128Mi")
    assert arrived.limits == call.limits
    assert arrived.expires_at == call.expires_at
    assert (arrived.scheduled, arrived.due_at, arrived.resume) == (scheduled, call.due_at, True)


def test_the_same_deployment_again_finds_what_exists(scheduler: Scheduler) -> None:
    first = scheduler.client.deploy(deployment())
    second = scheduler.client.deploy(deployment())
    assert (second[0].state, second[0].uid) == ("existing", first[0].uid)


def test_two_calls_at_once_create_each_task_once(scheduler: Scheduler) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: scheduler.client.deploy(deployment()), range(8)))
    assert sorted(a[0].state for a in answers) == ["created"] + ["existing"] * 7
    assert len({a[0].uid for a in answers}) == 1


def test_deferred_and_refused_tasks_say_why(scheduler: Scheduler) -> None:
    scheduler.deployer.deferred[1] = "32 tasks wait already"
    scheduler.deployer.refused[2] = "no such image"
    answers = scheduler.client.deploy(deployment(*(QueuedTask(70 + n, n, {}) for n in range(3))))
    assert [(a.state, a.reason) for a in answers] == [
        ("created", None),
        ("deferred", "32 tasks wait already"),
        ("refused", "no such image"),
    ]


def test_an_unknown_crawler_is_refused_for_good(scheduler: Scheduler) -> None:
    with pytest.raises(DeploymentRefused, match="'nope'"):
        scheduler.client.deploy(deployment(crawler="nope"))


@pytest.mark.parametrize(
    ("args", "own", "named"),
    [
        ({"key": "k", "typo": "1"}, {}, "typo"),
        ({"key": "k"}, {"typo": "1"}, "typo"),
        ({}, {}, "key"),
    ],
)
def test_wrong_arguments_of_any_task_create_nothing(
    scheduler: Scheduler, args: dict[str, str], own: dict[str, str], named: str
) -> None:
    tasks = (QueuedTask(70, 0, {} if named == "key" else {"page": "1"}), QueuedTask(71, 1, own))
    with pytest.raises(DeploymentRefused, match=rf"args\.{named}"):
        scheduler.client.deploy(deployment(*tasks, args=args))
    assert scheduler.deployer.created == {}


def test_an_expired_call_is_no_refusal(scheduler: Scheduler) -> None:
    with pytest.raises(DeploymentExpired):
        scheduler.client.deploy(deployment(life_s=-1))
    assert scheduler.deployer.created == {}


def test_an_expired_call_still_finds_what_exists(scheduler: Scheduler) -> None:
    scheduler.client.deploy(deployment())
    assert scheduler.client.deploy(deployment(life_s=-1))[0].state == "existing"


def test_a_cluster_that_is_away_is_unavailable(scheduler: Scheduler) -> None:
    scheduler.deployer.faults.add(ClusterUnavailable("the API server does not answer"))
    with pytest.raises(SchedulerUnavailable, match="does not answer"):
        scheduler.client.deploy(deployment())
    assert scheduler.client.deploy(deployment())[0].state == "created"


def test_where_the_caller_polls_arrives(scheduler: Scheduler) -> None:
    call = replace(deployment(), place="crawls/8e2c/41d0")
    scheduler.client.deploy(call)
    scheduler.client.deploy(deployment(QueuedTask(71, 1, {})))
    assert [arrived.place for arrived in scheduler.deployer.deployments] == [
        "crawls/8e2c/41d0",
        None,
    ]


def test_a_service_of_another_place_says_so_and_nothing_is_there(scheduler: Scheduler) -> None:
    scheduler.deployer.faults.add(OtherPlace("the worker looks into night, this is day"))
    with pytest.raises(MeantElsewhere, match="looks into night, this is day") as raised:
        scheduler.client.deploy(deployment())
    assert isinstance(raised.value, SchedulerUnavailable)
    assert scheduler.deployer.created == {}


def test_the_crawlers_are_told_in_order(scheduler: Scheduler) -> None:
    assert scheduler.client.crawlers() == CRAWLERS

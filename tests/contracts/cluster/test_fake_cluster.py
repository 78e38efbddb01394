"""The script of the fake cluster: what tests of the lifecycle tell it to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.task import Counters, Phase
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask, TaskRef
from tests.support.fakes.cluster import Behaviour, FakeCluster
from tests.support.run_refs import run_ref

CRAWLER = CrawlerDefinition("demo", CrawlerKind.COMMAND, command=["true"])


class Fixture:
    def __init__(self, behaviour: Behaviour) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.cluster = FakeCluster(clock=lambda: self.now, behaviour=behaviour)

    def deploy(self) -> DeployedTask:
        deployment = Deployment(
            run_ref(1),
            1,
            "demo",
            {},
            {},
            [QueuedTask(9, 0, {})],
            Resources(),
            Limits(),
            self.now + timedelta(seconds=25),
        )
        return self.cluster.deploy(deployment, CRAWLER)[0]

    def phase_after(self, seconds: float) -> Phase:
        self.now += timedelta(seconds=seconds)
        return self.cluster.poll(run_ref(1), [TaskRef(9, 0, 1)]).observations[0].phase


def test_time_alone_moves_a_task() -> None:
    fixture = Fixture(Behaviour(waits=10, executes=20, counters=Counters(pages=40)))
    fixture.deploy()
    assert [fixture.phase_after(s) for s in (0, 9, 1)] == [
        Phase.WAITING,
        Phase.WAITING,
        Phase.EXECUTING,
    ]
    fixture.phase_after(10)
    assert fixture.cluster.poll(run_ref(1), [TaskRef(9, 0, 1)]).observations[0].counters.pages == 20
    assert fixture.phase_after(10) is Phase.ENDED


def test_a_task_that_ignores_stops_ends_only_by_force() -> None:
    fixture = Fixture(Behaviour(executes=None, heeds_stop_after=None))
    fixture.deploy()
    fixture.cluster.stop(run_ref(1), TaskRef(9, 0, 1))
    assert fixture.phase_after(3600) is Phase.EXECUTING
    fixture.cluster.kill(run_ref(1), TaskRef(9, 0, 1))
    assert fixture.phase_after(0) is Phase.ENDED


@pytest.mark.parametrize("answer", ["deferred", "refused"])
def test_a_deployment_can_be_turned_down(answer: str) -> None:
    fixture = Fixture(Behaviour(deployed=answer, deploy_reason="quota"))
    assert (fixture.deploy().state, fixture.deploy().reason) == (answer, "quota")
    assert fixture.phase_after(0) is Phase.ABSENT


def test_things_happen_behind_our_back() -> None:
    fixture = Fixture(Behaviour(executes=None))
    uid = fixture.deploy().uid
    fixture.cluster.end_now(1)
    seen = fixture.cluster.poll(run_ref(1), [TaskRef(9, 0, 1)]).observations[0]
    assert seen.end is not None
    assert (seen.end.signal, seen.end.finished_at) == (9, fixture.now)
    fixture.cluster.vanish(1)
    assert fixture.phase_after(0) is Phase.ABSENT, "nobody knew that there was one"
    assert (
        fixture.cluster.poll(run_ref(1), [TaskRef(9, 0, 1, uid)]).observations[0].phase
        is Phase.GONE
    )


def test_outages_begin_and_end_and_calls_are_counted() -> None:
    fixture = Fixture(Behaviour())
    fixture.cluster.fail_with(ClusterUnavailable("down"), "poll")
    fixture.deploy()
    for _ in range(2):
        with pytest.raises(ClusterUnavailable):
            fixture.phase_after(0)
    fixture.cluster.fail_with(None)
    assert fixture.phase_after(0) is Phase.EXECUTING
    assert fixture.cluster.calls == {"deploy": 1, "poll": 3}

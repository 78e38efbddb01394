"""The queries of a handle, in memory and over HTTP: the same results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest
from crawler_lifecycle.graphs import (
    Graph,
    PlatformUnavailable,
    Record,
    Workflow,
    asking,
    client,
    worker,
)
from crawler_lifecycle.graphs.client import Gateway
from crawler_lifecycle.graphs.job import Job
from crawler_lifecycle.graphs.platform import Platform
from crawler_lifecycle.graphs.testing import Memory, in_memory
from tests.graphs.fake_gateway import FakeGateway, serving

VALUE = {
    "at": datetime(2026, 11, 22, tzinfo=UTC),
    "sum": Decimal("1.10"),
    "raw": b"\0",
    "$date": "no date",
}


@worker()
class Giving:
    def process(self, job: Job) -> Record:
        if job.args.get("fails"):
            raise RuntimeError("as told")
        return Record({**VALUE, **job.args})


def later(context: dict[str, Any]) -> int:
    return len(context["many"])


@pytest.fixture(params=["memory", "gateway"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(client, "PATHS_MAX", 3)
    monkeypatch.setattr(Gateway._pages, "__defaults__", (2,))
    with in_memory() as memory:
        if request.param == "memory":
            yield memory
            return
        with serving(FakeGateway(memory)) as url:
            former = asking.use(Gateway(url))
            yield asking.current()
            asking.use(former)


def built(**more: Any) -> Workflow:
    workflow = Workflow("name", id="odd id ü?", **more).add_context({"since": VALUE["at"]})
    workflow.add("first", Giving.new({"n": 1})).add_many(
        "many", [Giving.new({"n": n}) for n in range(6)], "first"
    )
    return workflow.add_cascade("later", later, "many")


def test_a_graph_from_its_start_to_its_end(platform: Platform) -> None:
    workflow = built().start()
    assert platform.send(workflow.id, workflow.spec(), name="name", tags=()) is False
    with pytest.raises(DuplicateRequest, match="another graph has this id"):
        Workflow(id=workflow.id).add("else", Giving.new({})).start()
    assert workflow.status().state == "executing"
    assert [workflow.get_job(name).reason for name in ("first", "many/0")] == [
        "it is waiting for a worker",
        'its graph "many" is waiting for "first" (available)',
    ]
    status = workflow.wait(timeout=3600)
    assert (status.name, status.state, status.total, status.subs["many"].total) == (
        "name",
        "completed",
        8,
        6,
    )
    assert isinstance(status.duration, timedelta)
    assert workflow.get_recorded("first") == {**VALUE, "n": 1}
    assert workflow.get_recorded("later") == 6
    assert workflow.get_recorded("nobody") is None
    assert list(workflow.all_recorded()["many"]) == [str(n) for n in range(6)]
    chosen = workflow.all_recorded(names=[f"many/{n}" for n in range(5)])["many"]
    assert (len(chosen), chosen["4"]) == (5, {**VALUE, "n": 4})
    assert workflow.get_context() == {"since": VALUE["at"]}
    job = workflow.get_job("first")
    assert (job.name, job.state, job.args, job.attempt) == ("first", "completed", {"n": 1}, 1)
    assert isinstance(job.started_at, datetime)
    assert len(workflow.all_jobs()) == 8
    assert [one.path for one in workflow.all_jobs(names=["many/3", "later"])] == ["many/3", "later"]
    assert len(workflow.all_jobs(deps_of="later")) == 6
    assert workflow.all_jobs(names=[]) == []
    sub = Workflow.for_job(workflow.get_job("many/5"))
    assert (len(sub.all_jobs()), sub.get_job("5").args, sub.status().total) == (6, {"n": 5}, 6)
    assert sub.all_recorded(names="5") == {"5": {**VALUE, "n": 5}}
    assert sub.get_context() == {"since": VALUE["at"]}


def grafting(context: dict[str, Any]) -> Workflow:
    return Workflow().add("x", Giving.new({})).add_many("more", [Giving.new({})], "x")


def test_a_handle_draws_its_graph(platform: Platform) -> None:
    """The picture shows the workflow as it was built, with everything appended and attached since."""
    workflow = (
        built()
        .add_many("none", [])
        .add_workflow("inner", Workflow().add_many("inner", [], None), "none")
    )
    handle = Workflow("name", id=workflow.start().id)
    assert handle.to_mermaid() == workflow.to_mermaid()
    assert handle.to_dot() == workflow.to_dot()
    assert handle.to_graph() == workflow.to_graph()
    many = handle.sub("many").to_graph()
    assert many == workflow.to_graph().vertices["many"]
    assert handle.sub("inner").to_graph().vertices == {"inner": Graph({}, [])}
    assert "first" not in handle.sub("many").to_mermaid()
    workflow.append(
        Workflow(check_deps=False)
        .add_graft("late", grafting, "later")
        .add("end", Giving.new({}), "late")
    )
    workflow.wait()
    late = Graph({"x": "Giving", "more": Graph({"0": "Giving"}, [])}, [("x", "more")])
    assert list(handle.to_graph().vertices.items())[-2:] == [("late", late), ("end", "Giving")]
    assert ("late", "end") in handle.to_graph().edges
    assert Workflow(id="nobody").to_graph() == Graph({}, [])


async def test_in_async_code_the_pictures_of_a_handle_are_awaited(platform: Platform) -> None:
    workflow = await Workflow().add("a", Giving.new({})).start()
    assert await Workflow(id=workflow.id).to_mermaid() == workflow.to_mermaid()
    assert Workflow().to_mermaid() == "flowchart TD\n", "nobody can have started it"


def test_what_nobody_knows(platform: Platform) -> None:
    """Queries have a result, commands are refused."""
    nobody = Workflow(id="nobody")
    assert (nobody.status().state, nobody.get_job("x"), nobody.all_jobs()) == ("unknown", None, [])
    assert (nobody.all_recorded(), nobody.get_context()) == ({}, None)
    more = Workflow().add("x", Giving.new({}))
    for command in (
        nobody.cancel_jobs,
        nobody.retry_jobs,
        nobody.wait,
        lambda: nobody.append(more),
    ):
        with pytest.raises(KeyError, match="nobody"):
            command()


def test_commands(platform: Platform) -> None:
    workflow = (
        Workflow("n").add("a", Giving.new({"fails": 1})).add("b", Giving.new({}), "a").start()
    )
    with pytest.raises(InvalidRequest, match='"nobody"'):
        workflow.cancel_jobs(names="nobody")
    assert (
        workflow.append(
            Workflow(check_deps=False).add("c", Giving.new({}), "b").add("d", Giving.new({}))
        )
        == 2
    )
    assert workflow.cancel_jobs(names=["d"], reason="enough") == 1
    nothing = [
        workflow.cancel_jobs(names=[]),
        workflow.retry_jobs(names=[]),
        workflow.all_recorded(names=[]),
    ]
    assert nothing == [0, 0, {}]
    assert workflow.wait().counts == {"cancelled": 3, "discarded": 1}
    assert workflow.get_job("d").reason.endswith(": enough")
    assert "as told" in workflow.get_job("a").errors[0]["error"]
    assert workflow.retry_jobs(names="a", cascade=True) == 3
    assert workflow.wait().counts == {"cancelled": 3, "discarded": 1}
    assert len(workflow.get_job("a").errors) == 2


def test_waiting_ends(platform: Platform) -> None:
    workflow = Workflow().add("late", Giving.new({}, schedule_in=10**6)).start()
    with pytest.raises(TimeoutError, match="has not ended"):
        workflow.wait(timeout=0)
    found = platform.find(states=["executing"], keys=[], limit=5)
    assert [one["id"] for one in found] == [workflow.id]
    assert platform.find(states=["completed"], keys=[], limit=5) == []


async def test_every_question_can_be_awaited(platform: Platform) -> None:
    workflow = await Workflow().add("a", Giving.new({})).start()
    assert (await workflow.wait()).state == "completed"
    assert (await workflow.get_job("a")).state == "completed"
    assert await workflow.cancel_jobs() == 0


# --- the client alone -----------------------------------------------------------------------------


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    gateway = FakeGateway(Memory())
    with serving(gateway) as url:
        gateway.url = url  # type: ignore[attr-defined]
        yield gateway


def test_a_gateway_that_is_away_for_a_moment_gets_the_same_command_again(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES_S", (0.0, 0.0))
    answers = [(503, {"detail": "later"}, {}), (502, None, {})]
    fake.first = lambda method, path, body: answers.pop() if answers else None
    fake.memory.send("k", Workflow().add("a", Giving.new({})).spec(), name=None, tags=())
    assert Gateway(fake.url).cancel("k", None, None) == 1
    keys = [one["Idempotency-Key"] for one in fake.headers]
    assert len(keys) == 3
    assert len(set(keys)) == 1


REFUSALS = {
    "unauthorised": (401, {"detail": "no token"}, PlatformUnavailable, "no token"),
    "broken": (500, {"detail": "our fault"}, PlatformUnavailable, "our fault"),
    "another service": (200, ["?"], PlatformUnavailable, "is not a gateway of crawler-lifecycle"),
    "a redirect": (302, {}, PlatformUnavailable, "HTTP 302"),
    "refused": (422, {"detail": "step 'x': no"}, InvalidRequest, "step 'x': no"),
    "no words": (418, None, InvalidRequest, "GET /v1/graphs: HTTP 418"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_gateway_may_answer(name: str, fake: Any) -> None:
    status, body, kind, said = REFUSALS[name]
    fake.first = lambda *_: (
        status,
        body,
        {"Location": "http://127.0.0.1:1/"} if status == 302 else {},
    )
    with pytest.raises(kind, match=said):
        Gateway(fake.url, token="secret").find(states=(), keys=(), limit=1)
    assert fake.headers[0]["Authorization"] == "Bearer secret"


def test_only_a_running_function_grafts(fake: Any) -> None:
    with pytest.raises(InvalidRequest, match="only the function that runs as this step may graft"):
        Gateway(fake.url).graft("k", "a", 1, Workflow().spec())


def test_the_gateway_is_found_as_crawlctl_finds_it(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("URL", "TOKEN"):
        monkeypatch.delenv(f"LIFECYCLE_GATEWAY__{name}", raising=False)
    monkeypatch.delenv("LIFECYCLE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        PlatformUnavailable, match="no gateway is known; set LIFECYCLE_GATEWAY__URL"
    ):
        client.found()
    folder = tmp_path / ".crawl"
    folder.mkdir(mode=0o700)
    (folder / "dev.json").write_text(json.dumps({"gateway": fake.url}))
    (folder / "dev.json").chmod(0o600)
    monkeypatch.setenv("LIFECYCLE_GATEWAY__TOKEN", "secret")
    assert client.found()[:2] == (fake.url, None)  # that gateway asks for none, and gets none
    config = tmp_path / "config.toml"
    config.write_text('[gateway]\nurl = "http://other:1"\ntoken = "of the file"')
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(config))
    assert client.found() == ("http://other:1", "secret", None)
    monkeypatch.setenv("LIFECYCLE_GATEWAY__URL", "http://named:2")
    assert client.found() == ("http://named:2", "secret", None)
    with pytest.raises(PlatformUnavailable, match="'postgresql://x' is not a gateway's address"):
        Gateway("postgresql://x")

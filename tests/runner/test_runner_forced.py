"""A task that is being stopped learns from the gateway that its stop was forced, because its
kubelet cannot tell it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from crawler_lifecycle.runner import contract, forced
from crawler_lifecycle.runner.child import Child
from crawler_lifecycle.runner.forced import ForcedStop
from crawler_lifecycle.runner.main import Runner
from tests.runner.runner_fixture import RunnerFixture, wait_until
from tests.support.faulty_http import Answer, FaultyServer, serving

pytestmark = pytest.mark.processes

TOKEN = "task.7.mac"
#: Ignores the stop, and ends long before its grace period is over.
DEAF = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path(os.environ["CRAWL_FILES_DIR"]) / "ready").touch()
time.sleep(300)
"""


class StubGateway(FaultyServer):
    """What the gateway reports about the stop of run 7."""

    def __init__(self) -> None:
        super().__init__()
        self.force = False

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if method == "POST":  # for a ticket: the storage is down
            return Answer(503, b"{}")
        assert (method, target) == ("GET", "/v1/runs/7/stop")
        assert headers["authorization"] == f"Bearer {TOKEN}"
        return Answer(200, json.dumps({"run_id": 7, "asked": True, "force": self.force}).encode())

    def environment(self, **more: str) -> dict[str, str]:
        own = {"CRAWL_GATEWAY_URL": f"{self.url}/", "CRAWL_TOKEN": TOKEN, "CRAWL_RUN_ID": "7"}
        return {**own, "CRAWL_STOP_GRACE_S": "600", "CRAWL_END_GRACE_S": "10", **more}


@pytest.fixture
def stub() -> Iterator[StubGateway]:
    made = StubGateway()
    with serving(made):
        yield made


def _stopped(fixture: RunnerFixture, code: str, environment: dict[str, str]) -> Any:
    process = fixture.start_python(code, eager=True, **environment)
    process.send_signal(signal.SIGTERM)
    return process


def test_a_forced_stop_ends_the_grace_of_a_plain_one(
    fixture: RunnerFixture, stub: StubGateway
) -> None:
    process = _stopped(fixture, DEAF, stub.environment())
    wait_until(lambda: stub.requests)
    assert process.poll() is None, "a plain stop leaves it its grace"
    stub.force = True
    began = time.monotonic()
    assert fixture.finish(process) == 13
    assert time.monotonic() - began < 300, "and not its 600 s"
    assert fixture.summary()["message"].startswith("It was killed by a forced stop, ")


def test_without_force_the_grace_is_kept(fixture: RunnerFixture, stub: StubGateway) -> None:
    process = _stopped(fixture, DEAF, stub.environment(CRAWL_STOP_GRACE_S="2"))
    assert fixture.finish(process) == 13
    assert (
        fixture.summary()["message"]
        == "It was still running 2 s after the stop signal and was killed"
    )


def test_a_forced_stop_hurries_the_upload(fixture: RunnerFixture, stub: StubGateway) -> None:
    """The upload has the time after the grace period, not the grace period as well."""
    stub.force = True
    url = f"{stub.url}/v1/runs/7/tasks/3/attempts/2/files"
    code = DEAF.replace("signal.SIG_IGN", "lambda *_: os._exit(0)")
    more = {
        "CRAWL_UPLOAD_URL": url,
        "CRAWL_UPLOAD_TOKEN": "files.7.3.2.mac",
        "CRAWL_END_GRACE_S": "5",
    }
    process = _stopped(fixture, code, stub.environment(**more))
    began = time.monotonic()
    fixture.finish(process)
    assert time.monotonic() - began < 300
    assert fixture.summary()["files"]["uploaded"] is False


def test_nobody_is_asked_where_there_is_nobody_to_ask(
    fixture: RunnerFixture, stub: StubGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forced, "_PAUSES_S", (600.0,))
    given = [
        {name: ""}
        for name in ("CRAWL_GATEWAY_URL", "CRAWL_TOKEN", "CRAWL_RUN_ID", "CRAWL_END_GRACE_S")
    ]
    given += [{"CRAWL_GATEWAY_URL": url} for url in ("nonsense", "file:///etc/passwd")]
    child = Child(signal.SIGTERM)
    child.stopped_at = time.monotonic()
    for more in ({}, *given):
        terms = contract.Contract.read(fixture.environment({}, stub.environment(**more)))
        runner = Runner(terms, scrapy=False)
        runner._grace_over(child)
        assert (runner._forced is None) == bool(more), more


@pytest.mark.parametrize(
    "trouble",
    [
        *[
            "drop",
            "hang",
            Answer(503),
            Answer(429),
            Answer(200, b"no JSON"),
            Answer(200, b"[]"),
            Answer(200, b"{}"),
        ],
        Answer(200, b'{"force": "yes"}'),
        Answer(200, b"[" * 100_000),
    ],
    ids=repr,
)
def test_whatever_goes_wrong_is_asked_again(
    stub: StubGateway, monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    monkeypatch.setattr(forced, "_PAUSES_S", (0.01,))
    if trouble == "hang":
        monkeypatch.setattr(forced, "_SILENCE_S", 0.5)
    stub.faults.extend([trouble, trouble])
    stub.force = True
    asking = ForcedStop(f"{stub.url}/v1/runs/7/stop", TOKEN)
    wait_until(lambda: stub.requests > 1)
    # The one that gets a response has as much time as it needs.
    monkeypatch.setattr(forced, "_SILENCE_S", 60.0)
    wait_until(lambda: asking.at is not None)
    assert stub.requests == 3


@pytest.mark.parametrize("status", [302, 401, 403, 404, 405])
def test_whoever_will_never_answer_is_asked_once(
    stub: StubGateway, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(forced, "_PAUSES_S", (0.01,))
    stub.faults.append(Answer(status, b"{}", headers={"Location": f"{stub.url}/elsewhere"}))
    asking = ForcedStop(f"{stub.url}/v1/runs/7/stop", TOKEN)
    wait_until(lambda: stub.requests)
    time.sleep(0.3)
    assert (stub.requests, asking.at) == (1, None)


def test_an_address_that_is_none_is_no_reason_to_fail(fixture: RunnerFixture) -> None:
    more = {
        "CRAWL_TOKEN": TOKEN,
        "CRAWL_RUN_ID": "7",
        "CRAWL_END_GRACE_S": "5",
        "CRAWL_STOP_GRACE_S": "2",
    }
    assert fixture.finish(_stopped(fixture, DEAF, {"CRAWL_GATEWAY_URL": "http://[", **more})) == 13
    assert b"Traceback" not in fixture.output

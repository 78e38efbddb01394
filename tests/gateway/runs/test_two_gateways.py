"""Two gateway processes beside each other, over one database and a real Temporal: one key is one run."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.gateway.access.tokens import new_token
from crawler_lifecycle.scheduler.app import create_app
from crawler_lifecycle.store import open_store
from crawler_lifecycle.web.listening import bind
from tests.gateway.gateway_process import Gateway, environment, gateway
from tests.gateway.gateway_world import CRAWLERS
from tests.support.databases import make_tables
from tests.support.fakes.services import FakeCatalogue, FakeDeployer
from tests.support.mariadb import MariaDb
from tests.support.temporal import temporal_server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.processes]

BODY = {"crawler": "plain", "args": {"page": "1"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    async with temporal_server(skipping=False) as env:
        yield env


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """A scheduler service with a token, as it has to have off loopback."""
    bound = bind("127.0.0.1", 0, "LIFECYCLE_TEST")
    app = create_app(FakeDeployer(), FakeCatalogue(CRAWLERS), token="s" * 32)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    bound.close()


class Pair:
    """Two gateways, the database under them, and a token."""

    def __init__(self, gateways: list[Gateway], database: str, token: str, temporal: Client) -> None:
        self.gateways = gateways
        self.database = database
        self.token = token
        self.temporal = temporal

    async def post(self, n: int, path: str, key: str, body: Any) -> httpx.Response:
        """One request to one of the two, over a connection of its own."""
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": key}
        async with httpx.AsyncClient(timeout=120) as http:
            return await http.post(self.gateways[n % 2].url + path, json=body, headers=headers)

    def ask_and_leave(self, key: str) -> None:
        """A start whose answer nobody waits for."""
        with socket.create_connection(("127.0.0.1", self.gateways[0].port)) as connection:
            content = json.dumps(BODY).encode()
            head = (
                f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\nIdempotency-Key: {key}\r\n"
            )
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)

    def runs(self) -> int:
        store = open_store(self.database)
        try:
            return len(store.runs.list_runs(limit=200))
        finally:
            store.close()

    async def workflows(self, key: str) -> int:
        """Executions under the run's workflow id, once the server's lists have caught up."""
        query, seen = f"WorkflowId = 'crawl/plain/{key}'", 0
        async with asyncio.timeout(60):
            while not seen:
                seen = (await self.temporal.count_workflows(query)).count
                await asyncio.sleep(0.1)
        return seen


@pytest.fixture(params=["sqlite", "mariadb"])
def pair(
    request: pytest.FixtureRequest, temporal: WorkflowEnvironment, scheduler: str, tmp_path: Path
) -> Iterator[Pair]:
    token, lines = new_token("portal", "operate")
    (tmp_path / "tokens.toml").write_text(lines)
    with ExitStack() as stack:
        if request.param == "mariadb":
            server: MariaDb = request.getfixturevalue("mariadb")
            database = stack.enter_context(server.database())
        else:
            database = f"sqlite:///{tmp_path}/runs.db"
        make_tables(database)
        settings = environment(
            tmp_path,
            TEMPORAL_ADDRESS=temporal.client.service_client.config.target_host,
            LIFECYCLE_DATABASE__URL=database,
            LIFECYCLE_SCHEDULER__URL=scheduler,
            LIFECYCLE_SCHEDULER__TOKEN="s" * 32,
            LIFECYCLE_GATEWAY__TOKENS_FILE="tokens.toml",
            LIFECYCLE_GATEWAY__HOST="0.0.0.0",
        )
        del settings["LIFECYCLE_GATEWAY__OPEN"]
        gateways = [stack.enter_context(gateway(settings, tmp_path)) for _ in range(2)]
        for one in gateways:
            _until_ready(one)
        yield Pair(gateways, database, token, temporal.client)


def _until_ready(running: Gateway) -> None:
    until = time.monotonic() + 150
    while True:
        with httpx.Client(timeout=60) as http:
            ready = http.get(f"{running.url}/readyz")
        if ready.status_code == 200:
            return
        assert time.monotonic() < until, f"not within 150 s: {ready.text}"
        time.sleep(0.05)


async def test_fifty_at_once_under_one_key_are_one_run_and_one_workflow(pair: Pair) -> None:
    key = pair.database[-12:].replace("/", "-")
    answers = await asyncio.gather(*(pair.post(n, "/v1/runs", key, BODY) for n in range(50)))
    assert [answer.status_code for answer in answers] == [202] * 50, answers[0].text
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert sum("Idempotency-Replayed" not in answer.headers for answer in answers) == 1
    assert pair.runs() == 1
    assert await pair.workflows(key) == 1
    # The other gateway knows the key as well, and what it stood for.
    other = await pair.post(1, "/v1/runs", key, {**BODY, "args": {"page": "2"}})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    # An answer that was lost: whoever asks again finds the run.
    for n in range(10):
        pair.ask_and_leave(f"{key}-{n}")
    repeated = await asyncio.gather(*(pair.post(1, "/v1/runs", f"{key}-{n}", BODY) for n in range(10)))
    assert {answer.status_code for answer in repeated} == {202}
    again = await asyncio.gather(*(pair.post(0, "/v1/runs", f"{key}-{n}", BODY) for n in range(10)))
    assert [a.json()["run_id"] for a in again] == [a.json()["run_id"] for a in repeated]
    assert pair.runs() == 11
    # A hundred stops of one run are one stop.
    run_id = answers[0].json()["run_id"]
    stops = await asyncio.gather(*(pair.post(n, f"/v1/runs/{run_id}/stop", "s", {"reason": "r"}) for n in range(40)))
    assert {answer.status_code for answer in stops} <= {200, 202}, {a.text for a in stops}
    assert {answer.json()["stop"]["requested_at"] for answer in stops} == {stops[0].json()["stop"]["requested_at"]}

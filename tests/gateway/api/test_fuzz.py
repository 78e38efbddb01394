"""Nothing that a fuzzer sends breaks the API, bypasses its checks, or gets a response that differs
from the document.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.domain.audits.audit import AuditReport
from crawler_lifecycle.domain.values import encode, packed
from crawler_lifecycle.features.graphs.domain.spec import StepState
from crawler_lifecycle.features.managers.ports import CODE_MANAGER, CODE_MODULE, UserCodeRow
from crawler_lifecycle.gateway.access.operations import ACCESS, Entrance
from crawler_lifecycle.gateway.access.tokens import TokenFile, new_token
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.web import tries
from crawler_lifecycle.web.origins import named_hosts
from tests.contracts.store.graphing import Graphed
from tests.gateway.api.fuzzing import PHASES, Findings, fuzz
from tests.gateway.gateway_harness import Harness

GRAPH = "nightly"
STEPS = [
    *(
        {"path": path, "kind": "function", "job": {"call": "shop.steps:work"}}
        for path in ("a", "b")
    ),
    {"path": "all", "kind": "graph"},
    {"path": "all/walk", "kind": "crawl", "job": {"crawler": "plain"}},
    {"path": "then", "kind": "function", "job": {"call": "shop.steps:work"}, "deps": ["all"]},
]
CRAWLERS = Path(__file__).parents[3] / "examples" / "crawlers.yaml"


class Served:
    """A gateway that requires tokens, without quotas and background tasks."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        harness.scheduler.catalogue.crawlers = {
            crawler.name: crawler for crawler in YamlCatalogue(CRAWLERS).all()
        }
        self.token, lines = new_token("fuzzer", "admin", "*")
        (folder / "tokens.toml").write_text(lines)
        callers = TokenFile(folder / "tokens.toml", clock=lambda: 0.0)
        self._app = harness.new_app(entrance=Entrance(callers, b"k" * 32, None, named_hosts(())))
        callers.keep({})  # the tokens of the database count as read, and as never too old
        # The event stream is closing: requests that wait for a run (``wait=60``) are answered at
        # once.
        self._app.state.leaving[0]()
        self.document = self._app.openapi()
        # A run with tasks and a log line, for all requests about run 1.
        with harness.client() as client:
            assert (
                client.post("/v1/runs", json={"crawler": "plain", "tasks": [{"args": {}}]}).json()[
                    "run_id"
                ]
                == 1
            )
        harness.claim(1)
        harness.deploy(1)
        # A manager with jobs, for all requests about manager 1.
        with harness.client() as client:
            assert (
                client.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"}).json()[
                    "manager_id"
                ]
                == 1
            )
            assert client.post("/v1/managers/1/jobs", json={"jobs": [{}]}).status_code == 202
        # User code that a worker has loaded.
        code = [("shop.steps", CODE_MODULE), ("shops.managers", CODE_MODULE)]
        code.append(("shops.managers:ShopsManager", CODE_MANAGER))
        harness.store.user_code.register_user_code(
            "worker", [UserCodeRow(plan, kind, "shops", "", "") for plan, kind in code]
        )
        # A graph with a result, a failure and waiting steps, for all requests about a graph.
        graph = {"id": GRAPH, "context": {"day": "monday"}, "steps": STEPS}
        with harness.client() as client:
            assert client.post("/v1/graphs", json=graph).json()["id"] == GRAPH
        for path in self.document["paths"]:
            for operation in (
                self.document["paths"][path].values() if "/graphs/{id}" in path else ()
            ):
                for named in operation["parameters"]:
                    if named["name"] == "id":
                        named["schema"] = {"type": "string", "enum": [GRAPH]}
        graphed = Graphed.claimed(cast(Any, harness), 1, Owner(f"graph/{GRAPH}", "chain"))
        work = [one for batch in graphed.advance().batches for one in graphed.work(batch.number)][
            :2
        ]
        graphed.begin(*work)
        data = b"".join(packed([encode({"pages": 3})]))
        failed = graphed.end(work[1], StepState.DISCARDED, reason="ValueError: no")
        graphed.begin(done=[graphed.end(work[0], result=data), failed])
        # An audit that has ended, for requests about the one that was begun.
        harness.workflows.report = AuditReport(
            "audit-1", harness.clock(), harness.clock(), repair=False
        )
        harness.store.findings.record_audit(harness.workflows.report)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            # The fuzzer never ends a lifespan, so it gets none.
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        if scope["path"] == "/v1/events" or b"follow" in scope["query_string"]:
            await self._look_into(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _look_into(self, scope: Any, receive: Any, send: Any) -> None:
        """Disconnect soon after the first data, because a stream has no end of its own."""
        begun, ended = asyncio.Event(), False

        async def watched(message: Any) -> None:
            nonlocal ended
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)
            begun.set()

        answer = asyncio.create_task(self._app(scope, receive, watched))
        await begun.wait()
        await asyncio.wait([answer], timeout=0.05)
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        if not ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _check(found: Findings, document: Any) -> None:
    assert not found.failures, "\n\n".join(found.failures[:5])
    assert sum(found.answers.values()) > 800
    for path, item in document["paths"].items():
        for method, operation in item.items():
            label = f"{method.upper()} {path}"
            asked = {status for (name, status), _ in found.answers.items() if name == label}
            assert asked, label
            if ACCESS[operation["operationId"]].role is not None:
                assert 401 in asked, label
            assert not {status for status in asked if status >= 500} - {503}, label
    # Not only refusals occurred.
    for label in ("POST /v1/runs", "POST /v1/runs/{run_id}/stop", "POST /v1/runs/{run_id}/poll"):
        assert found.answers[label, 202], label
    for label in ("", "/steps", "/results", "/status", "/context", "/picture", "/logs"):
        assert found.answers[f"GET /v1/graphs/{{id}}{label}", 200], label


def _once(document: Any) -> Any:
    """Return the document without the fields of a schedule's target, which have a route of their
    own.
    """
    body = document["paths"]["/v1/schedules/{name}"]["put"]["requestBody"]["content"][
        "application/json"
    ]
    model = body["schema"]["$ref"].rpartition("/")[2]
    fields = document["components"]["schemas"][model]["properties"]
    fields |= {
        "run": {"enum": [{"crawler": "plain"}]},
        "manager": {"type": "null"},
        "graph": {"type": "null"},
    }
    return document


@pytest.fixture(autouse=True)
def many_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the slowdown of guesses: the fuzzer sends thousands, and checks the response to each."""
    monkeypatch.setattr(tries, "WRONG_MAX", 1e9)


@pytest.mark.troubles
@pytest.mark.timeout(900)
def test_the_api_does_what_its_document_says(harness: Harness, tmp_path: Path) -> None:
    """Four thousand requests: every bound of every field, from both sides.

    Random requests follow below.
    """
    served = Served(harness, tmp_path)
    _check(
        fuzz(served, _once(served.document), served.token, "examples", "coverage"), served.document
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_does_so_for_longer_and_in_sequences(harness: Harness, tmp_path: Path) -> None:
    served = Served(harness, tmp_path)
    _check(fuzz(served, served.document, served.token, *PHASES, max_examples=60), served.document)

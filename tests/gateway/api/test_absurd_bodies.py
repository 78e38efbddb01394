"""Valid but absurd bodies: counts, depths and sizes.

Each costs little, whatever the response.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.bounds import VALUES_MAX, values_in
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.unknown import advise, suggest
from crawler_lifecycle.features.scrapyd.gateway.forms import FIELDS_MAX
from crawler_lifecycle.gateway.access.operations import ACCESS, BODY_MAX
from crawler_lifecycle.gateway.runs.requests import TASKS_MAX
from crawler_lifecycle.gateway.ui.parts import forms
from crawler_lifecycle.web.problems import DEPTH_MAX, ERRORS_MAX, NAMES_MAX, JsonBody
from crawler_lifecycle.web.turns import AT_ONCE_MAX, in_turn
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.served import served
from tests.support.absurd import ATTACKS, FORMS, filled
from tests.support.examples import examples

DOCS = Path(__file__).parents[3] / "docs"
JSON = {"Content-Type": "application/json"}
#: The maximum cost of a body: a multiple of the processor seconds in which 2 MiB of short values
#: are parsed, and MiB.
TIMES_MAX, MIB_MAX = 12.0, 160


@pytest.fixture(scope="module")
def parsing_s() -> float:
    """Processor seconds to parse 2 MiB of ``[1,1,1,…]``: the minimum cost of a body of this size."""
    raw, taken = filled("[", "1", "]"), list[float]()
    for _ in range(5):
        began = time.process_time()
        json.loads(raw)
        taken.append(time.process_time() - began)
    return max(min(taken), 0.01)


def peak_mib() -> Callable[[], float]:
    """Return a function that returns by how many MiB the process has grown at most since now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")

    def high() -> float:
        return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024

    before = high()
    return lambda: high() - before


@pytest.mark.parametrize("name", ATTACKS)
def test_an_absurd_body_costs_little(client: TestClient, parsing_s: float, name: str) -> None:
    method, path, raw = ATTACKS[name]
    client.post("/v1/runs", json={"colour": 1})  # whatever is made once has been made
    gained, began = peak_mib(), time.process_time()
    answer = client.request(method, path, content=raw, headers=JSON)
    spent, more = time.process_time() - began, gained()
    assert answer.status_code in (404, 413, 422), answer.text[:500]
    assert len(answer.content) < 20_000
    if answer.status_code == 422:
        told = answer.json()
        assert re.match(r"[\w.\[\]' -]+: ", told["detail"]), told["detail"][:200]
        assert len(told.get("errors", [])) <= ERRORS_MAX
    assert spent < TIMES_MAX * parsing_s, f"{spent:.3f} s, parsing {parsing_s:.3f} s"
    assert more < MIB_MAX, f"{more:.0f} MiB"


def test_what_is_counted_is_refused_before_it_is_parsed(
    client: TestClient, parsing_s: float
) -> None:
    method, path, raw = ATTACKS["a million steps"]
    began = time.process_time()
    answer = client.request(method, path, content=raw, headers=JSON)
    spent = time.process_time() - began
    assert answer.json()["errors"] == [
        {
            "field": "body",
            "message": f"{values_in(raw)} values are too many; send at most {VALUES_MAX} at once",
        }
    ]
    assert spent < 2 * parsing_s, f"{spent:.3f} s, parsing {parsing_s:.3f} s"


def test_large_bodies_that_make_sense_are_taken(harness: Harness, client: TestClient) -> None:
    tasks = [{"args": {"page": str(n), "site": "http://127.0.0.1"}} for n in range(TASKS_MAX)]
    answer = client.post("/v1/runs", json={"crawler": "plain", "tasks": tasks})
    assert answer.status_code == 202, answer.text[:500]
    assert (
        len(harness.store.tasks.list_tasks(answer.json()["run_id"], limit=TASKS_MAX + 1))
        == TASKS_MAX
    )
    job = {
        "call": "shop.steps:work",
        "args": {"numbers": list(range(10_000)), "text": "a, b, [c], " * 20_000},
    }
    steps = [
        {"path": f"s{n}", "kind": "function", "job": job if n == 0 else {"call": "a.b:c"}}
        for n in range(500)
    ]
    assert client.post("/v1/graphs", json={"id": "g", "steps": steps}).status_code == 202
    assert client.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"}).status_code == 202
    jobs = [
        {"spider_args": {"page": str(n), "site": f"http://127.0.0.1/{'x' * 400}"}}
        for n in range(500)
    ]
    assert client.post("/v1/managers/1/jobs", json={"jobs": jobs}).status_code == 202


def test_values_are_counted_as_they_are() -> None:
    value = [1, "a,[{", {"b": [True, None, 'c\\",,,"']}, "\\", "d,\\\\"]
    quick = values_in(json.dumps(value).encode())
    assert quick == 17, "what is few is counted quickly, with what stands in texts"
    assert values_in(json.dumps([value] * 10_000).encode()) == 1 + 10_000 * 10
    assert values_in(b"") == 1


# --- forms ----------------------------------------------------------------------------------------

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": BASE}


@pytest.mark.parametrize("name", FORMS)
def test_an_absurd_form_costs_little(client: TestClient, parsing_s: float, name: str) -> None:
    path, raw = FORMS[name]
    client.get(path)
    began = time.process_time()
    answer = client.post(path, content=raw, headers=FORM)
    spent = time.process_time() - began
    assert answer.status_code == 422, answer.text[:500]
    assert spent < TIMES_MAX * parsing_s, f"{spent:.3f} s, parsing {parsing_s:.3f} s"


# --- heads ----------------------------------------------------------------------------------------

HEADS: dict[str, tuple[str, dict[str, str]]] = {
    "unknown parameters": ("/v1/runs?" + "&".join(f"a{n}" for n in range(1400)), {}),
    "wrong values": ("/v1/runs?" + "&".join(["status=X"] * 800), {}),
    "the same filter": ("/v1/runs?" + "&".join(["status=FAILED"] * 560), {}),
    "a token of a page": ("/v1/runs?page_token=" + "A" * 8000, {}),
    "a number": ("/v1/runs?page_size=" + "9" * 8000, {}),
    "a time": ("/v1/runs?created_from=" + "2" * 8000, {}),
    "a path": ("/" + "/a" * 4000, {}),
    "cookies": ("/v1/runs", {"Cookie": "; ".join(f"a{n}=1" for n in range(3000))}),
    "ETags": ("/v1/runs", {"If-None-Match": '"a",' * 7000}),
    "encodings": ("/v1/runs", {"Accept-Encoding": "gzip," * 5000}),
    "a position": ("/v1/events", {"Last-Event-ID": "9" * 30_000}),
    "an origin": ("/v1/runs", {"Origin": "http://" + "a." * 15_000}),
    "a token": ("/v1/runs", {"Authorization": "Bearer " + "a." * 15_000}),
}


@pytest.mark.parametrize("name", HEADS)
def test_an_absurd_head_costs_little(client: TestClient, name: str) -> None:
    def spent(path: str, headers: dict[str, str]) -> float:
        began = time.process_time()
        assert client.get(path, headers=headers).status_code < 500
        return time.process_time() - began

    plain = min(spent("/v1/runs", {}) for _ in range(5))
    assert min(spent(*HEADS[name]) for _ in range(5)) < 8 * plain


# --- what waits for whom --------------------------------------------------------------------------


async def test_large_bodies_are_read_beside_the_loop_and_in_turns_of_their_projects() -> None:
    order, running = list[str](), collections.Counter[str]()

    def work(name: str) -> None:
        project = name[0]
        running[project] += 1
        assert running[project] == 1, "one of each project at a time"
        time.sleep(0.02)
        order.append(name)
        running[project] -= 1

    async def ask(project: str, n: int) -> None:
        with limited(project):
            await in_turn(AT_ONCE_MAX + 1, work, f"{project}{n}")

    asked = [asyncio.create_task(ask("a", n)) for n in range(8)]
    await asyncio.sleep(0)
    asked.append(asyncio.create_task(ask("b", 0)))
    await asyncio.gather(*asked)
    assert order.index("b0") <= 2, order
    assert [one for one in order if one != "b0"] == [f"a{n}" for n in range(8)]
    await in_turn(AT_ONCE_MAX, order.append, "small")
    assert order[-1] == "small"


async def test_another_caller_is_answered_while_absurd_bodies_are_read(harness: Harness) -> None:
    """Counted, not timed: while each large body is read, the event loop serves others."""
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=120) as http,
    ):
        reading = [
            asyncio.create_task(
                http.post("/v1/runs", content=ATTACKS["130,000 arguments"][2], headers=JSON)
            )
            for _ in range(10)
        ]
        answered = 0
        while not all(one.done() for one in reading):
            assert (await http.get("/healthz")).status_code == 200
            answered += 1
        assert {(await one).status_code for one in reading} == {422}
    assert answered >= 10, answered


# --- names that do not exist ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "meant"),
    [
        ("POST", "/v1/runs", {"crawlr": "plain"}, "crawlr", "crawler"),
        (
            "POST",
            "/v1/runs",
            {"crawler": "plain", "limits": {"runTimeoutS": 1}},
            "limits.runTimeoutS",
            "run_timeout_s",
        ),
        ("POST", "/v1/runs", {"crawler": "plain", "tasks": [{"arg": {}}]}, "tasks[0].arg", "args"),
        ("POST", "/v1/runs/1/stop", {"requestedBy": "me"}, "requestedBy", "requested_by"),
        ("POST", "/v1/runs/1/resume", {"re_run": True}, "re_run", "rerun"),
        ("POST", "/v1/graphs", {"step": []}, "step", "steps"),
        (
            "POST",
            "/v1/graphs",
            {"steps": [], "options": {"failFast": True}},
            "options.failFast",
            "fail_fast",
        ),
        ("POST", "/v1/managers", {"crawler": "plain", "flowID": "f"}, "flowID", "flow_id"),
        (
            "POST",
            "/v1/managers/1/jobs",
            {"jobs": [{"spider-args": {}}]},
            "jobs[0].spider-args",
            "spider_args",
        ),
        (
            "PUT",
            "/v1/schedules/s",
            {"run": {"crawler": "plain", "pol": "x"}, "cron": "1 * * * *"},
            "run.pol",
            "pool",
        ),
        ("PUT", "/v1/webhooks/w", {"ur": "https://a"}, "ur", "url"),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant(
    client: TestClient, method: str, path: str, body: dict[str, Any], field: str, meant: str
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 422, answer.text
    told = {error["field"]: error["message"] for error in answer.json()["errors"]}
    assert told[field] == f"unknown field; did you mean {meant}?"


def test_the_field_of_a_step_too(client: TestClient) -> None:
    for step, meant in (
        ({"path": "a", "kind": "function", "dep": []}, "deps"),
        ({"path": "a", "kind": "function", "job": {"call": "a.b:c", "arg": {}}}, "args"),
    ):
        told = client.post("/v1/graphs", json={"steps": [step]}).json()["detail"]
        assert f"did you mean {meant}?" in told, told


def test_what_is_like_nothing_gets_the_names_that_there_are() -> None:
    assert advise("colour", ["crawler", "tags"]) == "known: crawler, tags"
    assert advise("colour", []) == "leave it out"
    shops = [f"shop-{n}" for n in range(513)]
    assert suggest("Shop_733", [one for one in shops if one != "shop-73"]).startswith(
        "did you mean"
    )
    assert suggest("shop-374", shops[:350]) == "did you mean shop-347?", "two digits are swapped"
    assert suggest("x", shops).endswith("shop-2 and 510 more")
    assert suggest("x", []) == "known: none"
    began = time.process_time()
    suggest("x" * 1_000_000, shops * 1000)
    advise("x" * 1_000_000, ["crawler"] * 20)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("name", ["run_id", "RunID", "runId", "run-id", "RUN_ID"])
@pytest.mark.parametrize("value", [31, "31", 31.0])
def test_a_start_with_the_number_of_a_run_names_its_resume(
    client: TestClient, name: str, value: object
) -> None:
    answer = client.post("/v1/runs", json={"crawler": "plain", name: value})
    assert answer.status_code == 422
    if name in ("run_id", "RunID"):
        assert "send POST /v1/runs/31/resume" in answer.json()["detail"]
    else:
        assert answer.json()["detail"] == f"{name}: unknown field; did you mean run_id?"
    assert client.post("/v1/runs", json={"crawler": "plain", "run_id": None}).status_code == 202


# --- bounds ---------------------------------------------------------------------------------------


def _lists(schema: Any) -> Iterator[dict[str, Any]]:
    for part in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        if isinstance(part, dict) and part.get("type") == "list":
            yield part
        yield from _lists(part)


#: Lists in ``retries``, which is a part of the domain and does not know pydantic. Errors are
#: counted before they are built.
RETRIED = ('{"type": "str"}', '{"type": "int"}')


def test_every_list_of_a_body_has_an_end(harness: Harness) -> None:
    """Otherwise a million wrong entries would give a million errors."""
    bodies = {
        dependency.call
        for route in harness.app.routes
        for dependency in getattr(getattr(route, "dependant", None), "dependencies", ())
        if isinstance(dependency.call, JsonBody)
    }
    assert len(bodies) > 15
    for body in bodies:
        for one in _lists(body._adapter.core_schema):
            inner = json.dumps(one["items_schema"], default=str)
            assert "max_length" in one or inner in RETRIED, (body.kind, inner[:200])
            objects = '"model"' in inner or '"dataclass"' in inner or '"dict"' in inner
            assert one.get("fail_fast") or not objects, (body.kind, inner[:200])


def test_the_bounds_stand_in_the_docs() -> None:
    text = (DOCS / "access.md").read_text()
    for number in (VALUES_MAX, NAMES_MAX, FIELDS_MAX, forms.FIELDS_MAX, forms.LINES_MAX):
        assert f"{number:,}" in text, number
    assert f"over {DEPTH_MAX} levels" in text


# --- search ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Absurd:
    method: str
    path: str
    raw: bytes


PATHS = [
    *(
        ("POST", f"/v1/{path}")
        for path in ("runs", "graphs", "managers", "runs/1/stop", "runs/1/resume", "runs/1/tasks")
    ),
    *(
        ("POST", f"/v1/{path}")
        for path in ("managers/1/jobs", "managers/1/stop", "graphs/g/append", "graphs/g/cancel")
    ),
    *(("PUT", f"/v1/{path}") for path in ("graphs/g/pages/0", "schedules/s", "webhooks/w")),
]
FIELDS = [
    *(
        "crawler",
        "args",
        "settings",
        "tasks",
        "tags",
        "limits",
        "poll_minutes",
        "steps",
        "context",
        "options",
        "jobs",
    ),
    *(
        "names",
        "reason",
        "run",
        "manager",
        "graph",
        "run_id",
        "request_id",
        "plan",
        "argv",
        "events",
        "url",
        "x",
    ),
]
SCALARS = [
    "1",
    '"1"',
    "true",
    "null",
    "-0.0",
    "1e308",
    '""',
    '"\\u00e9"',
    '"x,y"',
    "{}",
    "[]",
    "9" * 400,
]
UNITS = [
    *SCALARS,
    '{"args":{"a":1}}',
    '{"path":"a","kind":"crawl","job":{"crawler":"plain"}}',
    '{"a":[],"b":{}}',
    "[[]]",
]


@st.composite
def absurd(draw: st.DrawFn) -> Absurd:
    """Return a body of one to three fields, each repeated, named, nested or long up to the size
    limit.
    """
    method, path = draw(st.sampled_from(PATHS))
    most = ACCESS["startRun"].body_max if draw(st.booleans()) else BODY_MAX
    fields = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True))
    size = draw(st.sampled_from([100, 5_000, 100_000, most])) // len(fields)
    parts = []
    for field in fields:
        unit = draw(st.sampled_from(UNITS))
        count = max(1, size // (len(unit) + 9))
        value = draw(
            st.sampled_from(
                [
                    "[" + ",".join([unit] * count) + "]",
                    "{" + ",".join(f'"k{n}":{unit}' for n in range(count)) + "}",
                    "{" + ",".join(f'"k{n}":[{unit}]' for n in range(count)) + "}",
                    "[" * min(count, 100_000) + "]" * min(count, 100_000),
                    '{"a":' * min(count, 20) + unit + "}" * min(count, 20),
                    '"' + "x" * max(0, size - 20) + '"',
                    "["
                    + ",".join(["{" + f'"a":{unit},"args":{{"b":{unit}}}' + "}"] * (count // 2))
                    + "]",
                ]
            )
        )
        parts.append(f'"{field}":{value}')
    return Absurd(method, path, ("{" + ",".join(parts) + "}").encode()[:most])


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=absurd())
def test_no_body_costs_much(client: TestClient, parsing_s: float, body: Absurd) -> None:
    gained, began = peak_mib(), time.process_time()
    answer = client.request(body.method, body.path, content=body.raw, headers=JSON)
    spent, more = time.process_time() - began, gained()
    shown = (
        f"{body.method} {body.path} {body.raw[:200]!r}: {answer.status_code} {answer.text[:300]}"
    )
    assert answer.status_code < 500, shown
    assert spent < TIMES_MAX * parsing_s, f"{spent:.3f} s, parsing {parsing_s:.3f} s: {shown}"
    assert more < MIB_MAX, f"{more:.0f} MiB: {shown}"

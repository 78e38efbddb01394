"""Checks before the routes: hosts, origins, sizes, garbage, crashes, health."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.loopback import is_loopback, leads_here
from tests.gateway.gateway_harness import BASE, Harness
from tests.support.store_ports import port_of

JSON = {"content-type": "application/json"}


def _problem(answer: object) -> tuple[int, str]:
    status, body = answer.status_code, answer.json()  # type: ignore[attr-defined]
    assert answer.headers["content-type"] == "application/problem+json"  # type: ignore[attr-defined]
    assert {"type", "title", "status", "detail", "code"} <= set(body)
    assert body["status"] == status
    assert "Traceback" not in json.dumps(body)
    return status, body["code"]


def test_garbage_is_told_what_is_wrong_with_it(harness: Harness, client: TestClient) -> None:
    for raw, status, code in [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"<html>", 400, "invalid_json"),
        (b"\xff\xfe{}", 400, "invalid_json"),
        (b'{"crawler": "plain", "priority": NaN}', 400, "invalid_json"),
        (b'{"crawler": "plain", "priority": 1e999}', 422, "invalid_request"),
        (b'{"crawler": "plain", "crawler": "strict"}', 400, "invalid_json"),
        (b'{"crawler": "\\ud800"}', 400, "invalid_json"),
        (b'{"crawler": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
        (b"[" * 50_000, 422, "invalid_request"),
        (b'{"a":' * 21 + b"1" + b"}" * 21, 422, "invalid_request"),
        (b"[]", 422, "invalid_request"),
        (b"null", 422, "invalid_request"),
        (b'"crawler"', 422, "invalid_request"),
    ]:
        assert _problem(client.post("/v1/runs", content=raw, headers=JSON)) == (status, code), raw
        assert harness.store.runs.list_runs() == []


def test_only_json_is_taken(client: TestClient) -> None:
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]:
        answer = client.post("/v1/runs", content=b"{}", headers={"content-type": kind})
        assert _problem(answer) == (415, "unsupported_type"), kind


def test_large_bodies_are_refused_announced_or_not(client: TestClient) -> None:
    size = 2 * 1024 * 1024 + 1
    assert _problem(client.post("/v1/runs", content=b" " * size, headers=JSON)) == (
        413,
        "too_large",
    )

    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 65536

    assert _problem(client.post("/v1/runs", content=parts(), headers=JSON)) == (413, "too_large")


def test_unknown_paths_and_methods(client: TestClient) -> None:
    for path in ("/v2/runs", "/v1/runs/", "/v1//runs", "/V1/runs"):
        assert _problem(client.get(path)) == (404, "not_found")
    answer = client.delete("/v1/runs")
    assert _problem(answer) == (405, "method_not_allowed")
    assert "GET" in answer.headers["allow"] or "POST" in answer.headers["allow"]
    assert _problem(client.request("TRACE", "/v1/runs")) == (405, "method_not_allowed")
    for page in ("/docs", "/redoc"):
        assert client.get(page).status_code == 404


FOREIGN = (
    *(
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8500",
        "10.0.0.1",
        "localhost.",
    ),
    *("localhost:8500.evil.com", "127.0.0.1:8500.evil.com", "[::1]evil.com"),
)


def test_a_foreign_host_is_refused_on_every_route(client: TestClient) -> None:
    for host in FOREIGN:
        for path in ("/healthz", "/v1/runs"):
            for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
                assert _problem(client.get(path, headers=headers)) == (403, "foreign_host"), host
        own = {"Host": "localhost:8500", "Origin": f"http://{host}"}
        assert _problem(client.get("/v1/runs", headers=own)) == (403, "foreign_origin")


def test_this_machine_is_known_by_its_names(client: TestClient) -> None:
    for host in ["localhost", "localhost:8500", "127.0.0.1:1", "[::1]:8500", "LOCALHOST:8500"]:
        assert client.get("/healthz", headers={"host": host}).status_code == 200, host


def test_a_foreign_origin_is_refused(harness: Harness, client: TestClient) -> None:
    for origin in [
        *("http://evil.example", "null", "file://", "https://localhost.evil.example", "x"),
        # Another port is another origin, and so is another name of this machine.
        *(
            "http://127.0.0.1:3000",
            "http://localhost",
            "http://[::1]",
            f"https{BASE[4:]}",
            f"{BASE}:1",
        ),
    ]:
        answer = client.post("/v1/runs", json={"crawler": "plain"}, headers={"origin": origin})
        assert _problem(answer) == (403, "foreign_origin"), origin
        assert harness.store.runs.list_runs() == []


def test_pages_of_this_machine_may_ask(client: TestClient) -> None:
    assert client.get("/v1/runs", headers={"origin": BASE}).status_code == 200


def test_a_bug_is_told_without_its_inside(
    harness: Harness, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("secret inside")

    harness.store.runs.list_runs = broken  # type: ignore[method-assign, assignment]
    answer = client.get("/v1/runs")
    assert _problem(answer) == (500, "internal_error")
    assert "secret" not in answer.text
    assert "secret inside" in caplog.text


def test_a_database_that_is_down_is_503_and_never_a_bug(
    client: TestClient, harness: Harness
) -> None:
    harness.store.close()
    from crawler_lifecycle.domain.errors import StoreUnavailable

    def down(*_: object, **__: object) -> object:
        raise StoreUnavailable("database is locked")

    for name in ("list_runs", "get_run", "find_run", "reserve_run"):
        setattr(port_of(harness.store, name), name, down)
    for method, path in (("GET", "/v1/runs"), ("GET", "/v1/runs/1"), ("POST", "/v1/runs/1/stop")):
        answer = client.request(method, path)
        assert _problem(answer) == (503, "store_unavailable")
        assert answer.headers["retry-after"]
    assert _problem(client.post("/v1/runs", json={"crawler": "plain"})) == (
        503,
        "store_unavailable",
    )


def test_health_and_readiness(harness: Harness, client: TestClient) -> None:
    assert client.get("/readyz").json() == {
        "ready": True,
        "checks": {"database": "ok", "temporal": "ok"},
    }
    harness.workflows.down = True
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "UNAVAILABLE" in answer.json()["checks"]["temporal"]
    assert client.get("/healthz").status_code == 200


def test_a_hanging_database_makes_readiness_say_no_in_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(harness.store.health, "ping", lambda: release.wait(120))
    monkeypatch.setattr("crawler_lifecycle.gateway.health.READY_TIMEOUT_S", 0.1)
    with harness.client(harness.new_app()) as client:
        try:
            for _ in range(3):
                assert "no answer within" in client.get("/readyz").json()["checks"]["database"]
            assert client.get("/healthz").status_code == 200
        finally:
            release.set()


def test_loopback_is_recognised() -> None:
    ours = ("127.0.0.1", "127.8.8.8:80", "::1", "localhost", "[::1]:8500", "LOCALHOST:8500")
    foreign = (
        *(
            "0.0.0.0",
            "",
            "::",
            "[::]:80",
            "evil:localhost",
            "192.168.1.1",
            "127.1",
            "0x7f000001",
            "localhost.",
        ),
        *(
            "localhost:8500.evil.com",
            "localhost:8500:80",
            "localhost:",
            "localhost:x",
            "localhost:123456",
        ),
        *(
            "localhost\n",
            "ann@localhost",
            "localhost/x",
            "127.0.0.1:8500.evil.com",
            "127.0.0.1.evil.com",
        ),
        *(
            "::1%evil.com",
            "[::1]evil.com",
            "[::1].evil.com:80",
            "[::1",
            "::1]",
            "[127.0.0.1]",
            "[localhost]",
        ),
    )
    assert [host for host in (*ours, *foreign) if is_loopback(host)] == list(ours)


def test_what_leads_here_says_so_with_its_whole_name() -> None:
    here = (
        "http://127.0.0.1:8500/x",
        "http://localhost:8500",
        "http://[::1]:8500/",
        "127.0.0.1:7233",
    )
    elsewhere = (
        *("https://127.0.0.1/", "http://localhost:8500.evil.com/", "http://[::1]evil.com/", None),
        *("http://localhost@evil.com/", "http://ann@localhost:8500/", "localhost:7233@evil.com"),
    )
    assert [address for address in (*here, *elsewhere) if leads_here(address)] == list(here)


def test_allow_names_every_method_of_a_path(client: TestClient) -> None:
    assert client.request("OPTIONS", "/v1/runs").headers["allow"] == "GET, POST"
    assert client.put("/v1/runs/1/tasks").headers["allow"] == "GET, POST"
    assert client.put("/v1/runs/1").headers["allow"] == "DELETE, GET"


def test_a_filter_by_time_takes_no_bare_number(client: TestClient) -> None:
    for moment in ["0.5", "1763640000", "2026-11-20", "yesterday", "2026-11-20T12:00:00"]:
        for path in ("/v1/runs?created_from=", "/v1/corrections?since="):
            answer = client.get(path + moment)
            assert _problem(answer) == (422, "invalid_request"), moment
            assert moment in answer.json()["detail"]

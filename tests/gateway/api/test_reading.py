"""What the gateway returns: pages, details, timelines, corrections, logs."""

from __future__ import annotations

from datetime import timedelta

from fastapi.testclient import TestClient

from crawler_lifecycle.domain.task import Change, Observation, Phase, TaskStatus
from crawler_lifecycle.gateway.api.paging import id_before
from crawler_lifecycle.ports.polls import CorrectionRow, Details, Poll, TaskFinding
from tests.gateway.gateway_harness import Harness


def _start(client: TestClient, **body: object) -> int:
    return int(client.post("/v1/runs", json={"crawler": "plain", **body}).json()["run_id"])


def _pages(client: TestClient, path: str, key: str, **params: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    token = None
    while True:
        answer = client.get(path, params={**params, **({"page_token": token} if token else {})})  # type: ignore[dict-item]
        assert answer.status_code == 200, answer.text
        found += answer.json()[key]
        token = answer.json()["next_page_token"]
        if token is None:
            return found


def test_runs_come_in_pages_newest_first_and_complete(client: TestClient) -> None:
    ids = [_start(client) for _ in range(7)]
    assert [run["run_id"] for run in _pages(client, "/v1/runs", "runs", page_size=3)] == ids[::-1]
    assert client.get("/v1/runs", params={"page_size": 7}).json()["next_page_token"] is None


def test_filters(harness: Harness, client: TestClient) -> None:
    plain = _start(client, flow_id="f")
    strict = _start(client, crawler="strict", args={"site": "a"}, trigger="api")
    ended = _start(client)
    harness.claim(ended)
    harness.end(ended)

    def ids(**params: object) -> set[object]:
        return {run["run_id"] for run in _pages(client, "/v1/runs", "runs", **params)}

    assert ids(crawler="strict") == {strict} == ids(trigger="api")
    assert ids(flow_id="f") == {plain}
    assert ids(status=["FAILED", "STOPPING"]) == {ended}
    assert ids(outcome="finished") == {ended}
    assert ids(outcome="x' OR 1=1 --") == set()
    assert ids(stage="completion") == {ended}


def test_runs_by_tag_and_by_time(harness: Harness, client: TestClient) -> None:
    def ids(**params: object) -> list[object]:
        return [run["run_id"] for run in _pages(client, "/v1/runs", "runs", page_size=2, **params)]

    times, runs = [], []
    for n in range(6):
        times.append(harness.clock().isoformat())
        runs.append(_start(client, tags=["even" if n % 2 == 0 else "odd", "Straße 1 & 2"]))
        harness.clock.forward(60)
    assert ids(tag="even") == [runs[4], runs[2], runs[0]]
    assert ids(tag="Straße 1 & 2") == runs[::-1]
    assert ids(tag="Even") == []
    assert ids(tag=["even", "Straße 1 & 2"]) == [runs[4], runs[2], runs[0]]
    assert ids(tag=["even", "odd"]) == ids(parent="manager/shops/f-1") == []
    assert ids(created_from=times[2], created_until=times[4]) == [runs[3], runs[2]]
    assert ids(tag="odd", created_from=times[2]) == [runs[5], runs[3]]


def test_a_span_that_holds_nothing_is_refused(client: TestClient) -> None:
    for until in ["2026-11-20T10:00:00Z", "2026-11-20T12:00:00+02:00"]:
        answer = client.get(
            "/v1/runs", params={"created_from": "2026-11-20T10:00:00Z", "created_until": until}
        )
        assert answer.status_code == 422, until
        assert answer.json()["errors"][0]["field"] == "created_until"


def test_wrong_parameters_are_refused(client: TestClient) -> None:
    for query in [
        "status=RUNING",
        "page_size=0",
        "page_size=201",
        "page_size=x",
        "page_token=garbage",
        "page_token=%FF",
        "page_token=dGFzazox",  # a token of another list
        "crawlr=plain",
        "trigger=",
        "stage=waiting",
        "created_from=2026-11-20T10:00:00",  # in which zone?
        "created_until=yesterday",
    ]:
        answer = client.get(f"/v1/runs?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), query
        assert answer.json()["errors"][0]["field"].startswith(query.partition("=")[0])


def test_a_run_in_full(harness: Harness, client: TestClient) -> None:
    run_id = _start(client, tags=["nightly"], tasks=[{}, {}, {}])
    harness.claim(run_id)
    harness.deploy(run_id)
    fence = harness.fence(run_id)
    harness.store.polls.record_poll(
        fence, Poll(harness.clock(), 0.1, []), [], harness.clock() + timedelta(seconds=60)
    )
    client.post(f"/v1/runs/{run_id}/stop", json={"request_id": "s", "requested_by": "ada"})
    harness.store.exports.record_export(fence, "empty", None, None)
    harness.clock.forward(7)
    run = client.get(f"/v1/runs/{run_id}").json()
    assert run["tasks"] == {"PENDING": 3}
    assert run["tags"] == ["nightly"]
    assert run["verified_ago_s"] == 7.0
    assert run["stale"] is False
    assert run["stop"]["requested_by"] == "ada"
    assert [entry["request_id"] for entry in run["cancellations"]] == ["s"]
    assert [entry["status"] for entry in run["exports"]] == ["empty"]
    assert run["request"]["crawler"] == "plain"


def test_tasks_and_their_logs(harness: Harness, client: TestClient) -> None:
    run_id = _start(client, tasks=[{}, {}, {}])
    harness.claim(run_id)
    harness.deploy(run_id)
    tasks = _pages(client, f"/v1/runs/{run_id}/tasks", "tasks", page_size=2)
    assert [task["task_index"] for task in tasks] == [0, 1, 2]
    first, second = int(str(tasks[0]["task_id"])), int(str(tasks[1]["task_id"]))
    waiting = client.get(f"/v1/runs/{run_id}/logs")
    assert (waiting.status_code, waiting.json()["code"]) == (404, "log_not_found")
    assert "is PENDING" in waiting.json()["detail"]

    fence, now = harness.fence(run_id), harness.clock()
    change = Change(
        first, TaskStatus.PENDING, TaskStatus.LOST, now, "lost", "It vanished", "vanished"
    )
    finding = TaskFinding(change, Observation(0, 1, Phase.GONE, now))
    harness.store.polls.record_poll(fence, Poll(now, 0.1, [finding.observation]), [finding], now)
    harness.store.polls.save_details(fence, [Details(first, "<b>the end</b>\n")])
    harness.store.polls.apply_details(fence)
    harness.store.polls.apply_findings(fence, "look")
    for params in ({}, {"task": first}):
        log = client.get(f"/v1/runs/{run_id}/logs", params=params)
        assert log.text == "<b>the end</b>\n"
        assert log.headers["content-type"].startswith("text/plain")
        assert log.headers["x-content-type-options"] == "nosniff"
    assert client.get(f"/v1/runs/{run_id}/logs", params={"task": second}).status_code == 404
    other = _start(client)
    foreign = client.get(f"/v1/runs/{other}/logs", params={"task": first})
    assert (foreign.status_code, foreign.json()["code"]) == (404, "task_not_found")

    [correction] = _pages(client, f"/v1/runs/{run_id}/corrections", "corrections")
    assert (correction["kind"], correction["truth"]) == ("vanished", "LOST")
    assert _pages(client, "/v1/corrections", "corrections") == [correction]
    assert _pages(client, "/v1/corrections", "corrections", since=harness.clock().isoformat()) == [
        correction
    ]
    harness.clock.forward(1)
    assert _pages(client, "/v1/corrections", "corrections", since=harness.clock().isoformat()) == []
    assert client.get("/v1/corrections", params={"since": "yesterday"}).status_code == 422


def test_runs_that_do_not_exist(client: TestClient) -> None:
    for path in ["", "/tasks", "/timeline", "/corrections", "/logs"]:
        for run_id, status in [("4711", 404), ("0", 422), ("x", 422), (str(2**63), 422)]:
            assert client.get(f"/v1/runs/{run_id}{path}").status_code == status, path


def test_a_time_is_found_among_corrections_by_bisection() -> None:
    from datetime import UTC, datetime

    base = datetime(2026, 1, 1, tzinfo=UTC)
    # Ids have gaps, as after deletions and failed inserts.
    ids = [n for n in range(1, 3000) if n % 7 and not 500 < n < 900]
    rows = [
        CorrectionRow(
            n,
            1,
            None,
            1,
            "late",
            "RUNNING",
            None,
            "LOST",
            None,
            "look",
            1,
            {},
            base + timedelta(seconds=n),
        )
        for n in ids
    ]

    class Store:
        calls = 0

        def list_corrections(
            self, run_id: int | None = None, after_id: int = 0, limit: int = 500
        ) -> list[CorrectionRow]:
            self.calls += 1
            return [row for row in rows if row.id > after_id][:limit]

    for wanted in (0, 1, 2, 499, 500, 501, 899, 900, 2998, 2999, 3000, 9999):
        store = Store()
        after = id_before(store, base + timedelta(seconds=wanted))  # type: ignore[arg-type]
        assert [row.id for row in rows if row.id > after] == [n for n in ids if n >= wanted]
        assert store.calls < 40


def test_a_catalogue_that_is_not_read_is_told_where_people_look(
    harness: Harness, client: TestClient
) -> None:
    problem = "crawlers.yaml:26 has not been read since 2026-03-01 10:02 UTC: again: unknown key; the list of … applies"
    harness.scheduler.problem = problem
    assert client.get("/v1/crawlers").json()["note"] == problem
    assert problem in client.post("/v1/runs", json={"crawler": "new"}).json()["detail"]
    assert client.post("/v1/runs", json={"crawler": "plain"}).json()["note"] == problem
    assert problem in client.get("/crawlers").text
    assert problem in client.get("/runs/new?crawler=plain").text
    harness.scheduler.problem = None
    assert problem not in client.post("/v1/runs", json={"crawler": "plain"}).text


def test_crawlers_are_remembered_for_a_moment(harness: Harness, client: TestClient) -> None:
    names = [crawler["name"] for crawler in client.get("/v1/crawlers").json()["crawlers"]]
    assert names == ["plain", "strict"]
    harness.scheduler.catalogue.crawlers.clear()
    assert len(client.get("/v1/crawlers").json()["crawlers"]) == 2


def test_runs_that_need_attention_have_no_live_status(harness: Harness) -> None:
    with harness.client() as client:
        assert client.get("/v1/runs", params={"attention": "true"}).json()["runs"] == []
        wrong = client.get("/v1/runs", params={"attention": "true", "status": "STOPPING"})
    assert (wrong.status_code, "attention" in wrong.json()["detail"]) == (422, True)

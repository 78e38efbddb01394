"""POST /v1/runs: one run and one workflow for each key, whatever happens on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.crawlers.arguments import Argument, ArgumentType
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, with_limits
from crawler_lifecycle.domain.errors import SchedulerUnavailable, TemporalUnavailable
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.gateway.runs.commands import CommandResult, Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import StartRun
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.web.problems import Problem
from tests.gateway.gateway_harness import Harness
from tests.support.catalogues import stored_in


def test_a_start_answers_with_the_run_and_starts_its_workflow(
    harness: Harness, client: TestClient
) -> None:
    answer = client.post(
        "/v1/runs",
        json={"crawler": "plain", "requested_by": "ada"},
        headers={"Idempotency-Key": "k"},
    )
    run = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/v1/runs/{run['run_id']}"
    assert "Idempotency-Replayed" not in answer.headers
    assert run["workflow_id"] == "crawl/plain/k"
    assert run["status"] == "INITIALIZING"
    assert run["requested_by"] == "ada"
    [(workflow_id, request)] = harness.workflows.started
    assert workflow_id == "crawl/plain/k"
    assert request == RunRequest(crawler="plain", run_id=run["run_id"])


def test_without_a_key_every_start_is_a_new_run(client: TestClient) -> None:
    first, second = (client.post("/v1/runs", json={"crawler": "plain"}).json() for _ in range(2))
    assert first["run_id"] != second["run_id"]


@pytest.mark.parametrize("again", ['"k"', "k"])
def test_the_same_key_and_body_find_the_same_run(
    harness: Harness, client: TestClient, again: str
) -> None:
    body = {"crawler": "plain", "args": {"page": "1"}}
    first = client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    second = client.post("/v1/runs", json=body, headers={"Idempotency-Key": again})
    assert second.status_code == 202
    assert second.headers["Idempotency-Replayed"] == "true"
    assert second.json()["run_id"] == first.json()["run_id"]
    assert len(harness.workflows.started) == 1


def test_a_repeat_a_day_later_finds_the_ended_run_and_starts_nothing(
    harness: Harness, client: TestClient
) -> None:
    body = {"crawler": "plain"}
    run_id = client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"}).json()["run_id"]
    harness.claim(run_id)
    harness.end(run_id)
    harness.clock.forward(86_400)
    # Meanwhile the crawler got other limits, and then was removed; the scheduler service is down as
    # well.
    harness.scheduler.catalogue.crawlers["plain"] = dataclasses.replace(
        harness.scheduler.catalogue.crawlers["plain"], limits={"stall_timeout_s": 5.0}
    )
    harness.scheduler.faults.add(SchedulerUnavailable("down"), 9)
    answer = client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["run_id"], answer.json()["status"]) == (
        202,
        run_id,
        "FAILED",
    )
    assert len(harness.workflows.started) == 1


@pytest.mark.parametrize(("priority", "status"), [(3, 202), (1, 422)])
def test_a_repeat_that_came_while_the_catalogue_was_asked_finds_the_run(
    harness: Harness,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    priority: int,
    status: int,
) -> None:
    """The first request waits for its catalogue; its repetition reaches a gateway that has an older
    one cached.
    """
    asked = harness.scheduler.crawlers
    elsewhere = with_limits(RunRequest(crawler="plain"), {"stall_timeout_s": 66.0})

    def slow() -> list[CrawlerDefinition]:
        harness.store.initiation.reserve_run(elsewhere, "k")
        return asked()

    monkeypatch.setattr(harness.scheduler, "crawlers", slow)
    body = {"crawler": "plain", "priority": priority}
    answer = client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == status, answer.text
    [row] = harness.store.runs.list_runs()
    assert row.request["limits"]["stall_timeout_s"] == 66.0
    if status == 202:
        assert (answer.json()["run_id"], answer.headers["Idempotency-Replayed"]) == (
            row.run_id,
            "true",
        )


def test_the_same_key_with_another_body_is_refused(harness: Harness, client: TestClient) -> None:
    client.post("/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"})
    answer = client.post(
        "/v1/runs", json={"crawler": "plain", "priority": 1}, headers={"Idempotency-Key": "k"}
    )
    assert answer.status_code == 422
    assert answer.json()["code"] == "idempotency_mismatch"
    assert len(harness.store.runs.list_runs()) == 1


def test_a_key_in_the_body_counts_and_may_not_differ_from_the_header(client: TestClient) -> None:
    body = {"crawler": "plain", "request_id": "k"}
    assert client.post("/v1/runs", json=body).json()["request_id"] == "k"
    assert client.post("/v1/runs", json=body).headers["Idempotency-Replayed"] == "true"
    assert (
        client.post("/v1/runs", json=body, headers={"Idempotency-Key": "other"}).status_code == 422
    )


def test_an_unusable_key_is_refused(client: TestClient) -> None:
    for key in ["", " ", "a" * 121, "tab\there"]:
        answer = client.post(
            "/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": key}
        )
        assert answer.status_code == 422, key
        assert "request_id" in answer.json()["detail"]


def test_twenty_at_once_with_one_key_make_one_run_and_one_workflow(
    harness: Harness, client: TestClient
) -> None:
    def start(_: int) -> tuple[int, int]:
        answer = client.post(
            "/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "same"}
        )
        return answer.status_code, answer.json()["run_id"]

    with ThreadPoolExecutor(20) as pool:
        answers = set(pool.map(start, range(20)))
    assert {status for status, _ in answers} == {202}
    assert len({run_id for _, run_id in answers}) == 1
    assert len(harness.store.runs.list_runs()) == 1
    assert len(harness.workflows.started) == 1


def test_ten_thousand_tasks_are_stored_and_do_not_travel(
    harness: Harness, client: TestClient
) -> None:
    tasks = [{"args": {"page": str(n)}} for n in range(10_001)]
    assert client.post("/v1/runs", json={"crawler": "plain", "tasks": tasks}).status_code == 422
    body = {"crawler": "plain", "tasks": tasks[:-1], "max_parallel_tasks": 10}
    answer = client.post("/v1/runs", json=body).json()
    assert answer["multi"] is True
    assert harness.store.tasks.count_tasks(answer["run_id"]).queued == 10_000
    assert harness.workflows.started[0][1].tasks is None
    assert harness.store.tasks.list_tasks(answer["run_id"], limit=2)[1].args == {"page": "1"}


def test_limits_of_the_catalogue_fill_what_the_caller_left(
    harness: Harness, client: TestClient
) -> None:
    run = client.post("/v1/runs", json={"crawler": "plain", "limits": {"stop_grace_s": 5}}).json()
    limits = harness.store.runs.request_of(run["run_id"]).limits
    assert (limits.stall_timeout_s, limits.stop_grace_s) == (77.0, 5.0)
    run = client.post(
        "/v1/runs", json={"crawler": "plain", "limits": {"stall_timeout_s": 9}}
    ).json()
    assert harness.store.runs.request_of(run["run_id"]).limits.stall_timeout_s == 9.0


def test_a_wrong_request_names_the_field_and_leaves_no_row(
    harness: Harness, client: TestClient
) -> None:
    for body, field in [
        ({}, "crawler"),
        ({"crawler": "nope"}, "crawler"),
        ({"crawler": "Not A Name"}, "crawler"),
        ({"crawler": "plain", "run_id": 1}, "run_id"),
        ({"crawler": "plain", "rerun": True}, "rerun"),
        ({"crawler": "plain", "args": {"page": 1}}, "args.page"),
        ({"crawler": "plain", "args": {"typo": "1"}}, "args.typo"),
        ({"crawler": "strict"}, "args.site"),
        ({"crawler": "strict", "tasks": [{"args": {"site": "a"}}, {}]}, "tasks[1].args.site"),
        ({"crawler": "plain", "tasks": [{"args": {"typo": "1"}}]}, "tasks[0].args.typo"),
        ({"crawler": "plain", "args": {"typo": "1"}, "tasks": [{}]}, "args.typo"),
        ({"crawler": "plain", "tasks": []}, "tasks"),
        ({"crawler": "plain", "args": {"page": "x" * 65_600}}, "args"),
        ({"crawler": "plain", "settings": {"A": "x" * 65_600}}, "settings"),
        ({"crawler": "plain", "settings": {"LOG_FILE": "/tmp/x"}}, "settings.LOG_FILE"),
        ({"crawler": "plain", "settings": {"DOWNLOAD_DELAY": "-1"}}, "settings.DOWNLOAD_DELAY"),
        ({"crawler": "plain", "tasks": [{}, {"args": {"page": "x" * 65_600}}]}, "tasks[1].args"),
        ({"crawler": "plain", "tasks": [{"arguments": {}}]}, "tasks[0].arguments"),
        (
            {"crawler": "plain", "resources": {"cpu": "1", "privileged": "true"}},
            "resources.privileged",
        ),
        ({"crawler": "plain", "limits": {"run_timeout_s": 5, "owner": "x"}}, "limits.owner"),
        ({"crawler": "plain", "priority": 9}, "priority"),
        ({"crawler": "plain", "priority": "3"}, "priority"),
        ({"crawler": "plain", "limits": {"stop_grace_s": -1}}, "limits.stop_grace_s"),
        ({"crawler": "plain", "poll_minutes": [0]}, "poll_minutes[0]"),
        ({"crawler": "plain", "due_at": "tomorrow"}, "due_at"),
        ({"crawler": "plain", "resources": {"memory": "much"}}, "resources.memory"),
    ]:
        answer = client.post("/v1/runs", json=body)
        problem = answer.json()
        assert answer.status_code == 422, body
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["errors"][0]["field"] == field
        assert field in problem["detail"]
        assert harness.store.runs.list_runs() == []
        assert harness.workflows.started == []


def test_an_unknown_crawler_is_answered_with_the_known_ones(client: TestClient) -> None:
    problem = client.post("/v1/runs", json={"crawler": "nope"}).json()
    assert problem["code"] == "unknown_crawler"
    assert "plain, strict" in problem["detail"]


def test_the_scheduler_service_down_is_no_reason_to_accept_anything(
    harness: Harness, client: TestClient
) -> None:
    harness.scheduler.faults.add(SchedulerUnavailable("no answer"), 2)
    answer = client.post("/v1/runs", json={"crawler": "plain"})
    assert (answer.status_code, answer.json()["code"]) == (503, "scheduler_unavailable")
    assert answer.headers["Retry-After"]
    assert harness.store.runs.list_runs() == []


def test_with_the_scheduler_service_down_a_start_goes_by_the_catalogue_last_read(
    harness: Harness,
) -> None:
    now = 100.0
    crawlers = Crawlers(harness.scheduler, stored_in(harness.store), clock=lambda: now)
    commands = Commands(
        harness.store.initiation,
        harness.store.additions,
        harness.store.stops,
        harness.store.runs,
        harness.store.deletion,
        harness.workflows,
        crawlers,
        harness.store.versions,
        harness.clock,
    )

    def start(key: str, crawler: str = "plain") -> CommandResult[RunRow]:
        return asyncio.run(commands.start(StartRun.model_validate({"crawler": crawler}), key))

    assert start("a").note is None
    now += 42
    harness.scheduler.faults.add(SchedulerUnavailable("no answer"), 2)
    late = start("b")
    assert "catalogue of 42 s ago" in str(late.note)
    assert late.row.request["limits"] == start("a").row.request["limits"], (
        "with the limits that were read then"
    )
    assert [request.run_id for _, request in harness.workflows.started] == [1, 2]
    now += 10
    assert "52 s ago" in str(start("c").note)
    with pytest.raises(SchedulerUnavailable):
        start("d", "declared-since")
    now += 10
    assert start("e").note is None, "it is back"
    with pytest.raises(Problem, match="unknown"):
        start("f", "declared-since")


def test_the_list_of_crawlers_says_its_age_while_the_service_is_down(harness: Harness) -> None:
    with harness.client(harness.new_app(catalogue_s=0.01)) as client:
        assert "Age" not in client.get("/v1/crawlers").headers
        harness.scheduler.faults.add(SchedulerUnavailable("no answer"), 100_000)
        while "Age" not in (answer := client.get("/v1/crawlers")).headers:
            time.sleep(0.05)
        assert answer.status_code == 200
        assert "plain" in {crawler["name"] for crawler in answer.json()["crawlers"]}
        assert int(answer.headers["Age"]) >= 0


def test_temporal_down_keeps_the_run_and_the_sweep_starts_it(
    harness: Harness, client: TestClient
) -> None:
    harness.workflows.down = True
    answer = client.post("/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "temporal_unavailable")
    assert answer.headers["Retry-After"]
    assert "is recorded and starts as soon as" in problem["detail"]
    sweep = harness.sweep()
    harness.clock.forward(11)
    with pytest.raises(TemporalUnavailable):
        asyncio.run(sweep.once())
    harness.workflows.down = False
    assert asyncio.run(sweep.once()) == 1
    assert [w for w, _ in harness.workflows.started] == ["crawl/plain/k"]
    again = client.post("/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["run_id"]) == (202, problem["run_id"])
    assert len(harness.workflows.started) == 1


def test_a_lost_answer_of_temporal_starts_nothing_twice(
    harness: Harness, client: TestClient
) -> None:
    harness.workflows.lose_answers = 1
    for expected in (503, 202):
        answer = client.post(
            "/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"}
        )
        assert answer.status_code == expected
    assert len(harness.workflows.started) == 1


def test_a_gateway_killed_between_row_and_workflow_is_mended_by_another(
    harness: Harness, client: TestClient
) -> None:
    # A process that is killed there leaves exactly this behind:
    row, fresh = harness.store.initiation.reserve_run(RunRequest(crawler="plain"), "k")
    assert fresh
    harness.clock.forward(5)
    assert asyncio.run(harness.sweep().once()) == 0, (
        "a young row belongs to the request that writes it"
    )
    harness.clock.forward(6)
    assert asyncio.run(harness.sweep().once()) == 1
    assert harness.workflows.started == [
        ("crawl/plain/k", RunRequest(crawler="plain", run_id=row.run_id))
    ]
    harness.claim(row.run_id)
    assert asyncio.run(harness.sweep().once()) == 0


def test_the_app_sweeps_by_itself(harness: Harness) -> None:
    harness.store.initiation.reserve_run(RunRequest(crawler="plain"), "k")
    harness.clock.forward(11)
    with harness.client(harness.new_app(outbox_retry_s=0.02)) as client:
        until = time.monotonic() + 150
        while not harness.workflows.started and time.monotonic() < until:
            client.get("/healthz")
    assert [w for w, _ in harness.workflows.started] == ["crawl/plain/k"]


def test_the_sweep_survives_everything_and_tries_a_stubborn_row_ever_more_rarely(
    harness: Harness,
) -> None:
    harness.store.initiation.reserve_run(RunRequest(crawler="plain"), "k")
    sweep, tries = harness.sweep(), 0

    async def broken(*_: object, **__: object) -> str:
        nonlocal tries
        tries += 1
        raise RuntimeError("not what anybody expected")

    harness.workflows.start = broken  # type: ignore[method-assign, assignment]
    for _ in range(40):
        harness.clock.forward(15)
        assert asyncio.run(sweep.once()) == 0
    assert 3 <= tries <= 7


def test_what_temporal_refuses_of_one_row_holds_up_no_other(harness: Harness) -> None:
    """For example, the workflow of one row has received all the signals that the server allows."""
    for key in ("a", "odd", "z"):
        harness.store.initiation.reserve_run(RunRequest(crawler="plain"), key)
    harness.clock.forward(11)
    real = harness.workflows.start

    async def refusing(
        request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False
    ) -> str:
        if workflow_id.endswith("odd"):
            raise TemporalUnavailable("Temporal refused the call (INVALID_ARGUMENT): too many")
        return await real(request, workflow_id, run_uid, repair=repair)

    harness.workflows.start = refusing  # type: ignore[method-assign]
    assert asyncio.run(harness.sweep().once()) == 2
    assert sorted(w for w, _ in harness.workflows.started) == ["crawl/plain/a", "crawl/plain/z"]


def test_a_run_that_ended_meanwhile_is_not_started_by_the_sweep(harness: Harness) -> None:
    row, _ = harness.store.initiation.reserve_run(RunRequest(crawler="plain"), "k")
    harness.clock.forward(11)
    sweep = harness.sweep()
    commands = sweep.commands
    asyncio.run(
        harness.workflows.start(RunRequest(run_id=row.run_id), "crawl/plain/k", row.run_uid)
    )
    harness.claim(row.run_id)
    harness.end(row.run_id)
    asyncio.run(commands.take_over(row))
    assert len(harness.workflows.started) == 1
    assert harness.store.runs.get_run(row.run_id).status is RunStatus.FAILED  # type: ignore[union-attr]


def test_the_body_has_every_field_of_a_run_request() -> None:
    fields = {f.name for f in dataclasses.fields(RunRequest)} - {"rerun", "code", "canary"}
    assert set(StartRun.model_fields) == fields
    plain, defaults = StartRun(crawler="plain").request(), RunRequest(crawler="plain")
    assert plain == defaults


def _typed(harness: Harness) -> None:
    kinds = {"pages": "integer", "delay": "number", "images": "boolean", "word": "string"}
    args = {name: Argument(type=ArgumentType(kind)) for name, kind in kinds.items()}
    args["size"] = Argument(type=ArgumentType.INTEGER, choices=["10", "100"])
    plain = harness.scheduler.catalogue.crawlers["plain"]
    harness.scheduler.catalogue.crawlers["plain"] = dataclasses.replace(plain, args=args)


def test_numbers_of_json_are_taken_for_arguments_that_are_declared_so(
    harness: Harness, client: TestClient
) -> None:
    _typed(harness)
    body = {"pages": 10, "delay": 0.5, "images": True, "word": "10", "size": 100}
    key = {"Idempotency-Key": "k"}
    run = client.post(
        "/v1/runs",
        json={"crawler": "plain", "args": body, "tasks": [{"args": {"pages": 3}}]},
        headers=key,
    )
    assert run.status_code == 202, run.text
    stored = harness.store.runs.request_of(run.json()["run_id"])
    assert stored.args == {
        "pages": "10",
        "delay": "0.5",
        "images": "true",
        "word": "10",
        "size": "100",
    }
    assert [task.args for task in harness.store.tasks.list_tasks(run.json()["run_id"])] == [
        {"pages": "3"}
    ]
    # The same values in quotes are the same request.
    quoted = {"crawler": "plain", "args": stored.args, "tasks": [{"args": {"pages": "3"}}]}
    assert (
        client.post("/v1/runs", json=quoted, headers=key).headers["Idempotency-Replayed"] == "true"
    )
    harness.claim(run.json()["run_id"])
    more = client.post(
        f"/v1/runs/{run.json()['run_id']}/tasks", json={"tasks": [{"args": {"pages": 4}}]}
    )
    assert more.status_code == 202, more.text


def test_an_argument_of_another_type_is_refused_at_the_api(
    harness: Harness, client: TestClient
) -> None:
    for args, field in [
        ({"pages": 1.5}, "args.pages"),
        ({"pages": True}, "args.pages"),
        ({"pages": "ten"}, "args.pages"),
        ({"pages": 10**40}, "args.pages"),
        ({"delay": "soon"}, "args.delay"),
        ({"images": 1}, "args.images"),
        ({"word": 10}, "args.word"),
        ({"word": None}, "args.word"),
        ({"word": ["x"]}, "args.word"),
        ({"size": 11}, "args.size"),
    ]:
        for own in [False, True]:
            _typed(harness)
            answer = client.post(
                "/v1/runs",
                json={
                    "crawler": "plain",
                    **({"tasks": [{"args": args}]} if own else {"args": args}),
                },
            )
            assert answer.status_code == 422, args
            [error] = answer.json()["errors"]
            assert error["field"] == (f"tasks[0].{field}" if own else field)
            assert ("give " in error["message"]) or ("put it in quotes" in error["message"])
            assert harness.store.runs.list_runs() == []


@pytest.mark.parametrize("name", ["EXTENSIONS", "LOG_FILE", "FEEDS", "made_up"])
def test_a_setting_that_may_be_code_is_refused_with_its_fix(
    harness: Harness, client: TestClient, name: str
) -> None:
    answer = client.post("/v1/runs", json={"crawler": "plain", "settings": {name: "x"}})
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["field"]) == (422, f"settings.{name}")
    assert "allow_settings" in error["message"]
    assert harness.store.runs.list_runs() == []
    plain = harness.scheduler.catalogue.crawlers["plain"]
    harness.scheduler.catalogue.crawlers["plain"] = dataclasses.replace(plain, settings={name: "x"})
    assert client.post("/v1/runs", json={"crawler": "plain"}).status_code == 202

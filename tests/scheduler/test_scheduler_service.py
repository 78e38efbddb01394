"""The reference scheduler service: strict with requests, honest in its answers, and complete as a
process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import ClusterUnavailable, DeploymentExpired
from crawler_lifecycle.scheduler.app import create_app
from tests.support.fakes.services import FakeCatalogue, FakeDeployer
from tests.support.run_refs import run_ref

CRAWLER = CrawlerDefinition(
    "plain",
    CrawlerKind.COMMAND,
    command=["true"],
    args={"page": Argument()},
    env={"PASSWORD": "canary"},
)


def _body(**changes: Any) -> dict[str, Any]:
    expires_at = (datetime.now(UTC) + timedelta(seconds=120)).isoformat()
    tasks = [{"task_id": 70, "index": 0}]
    body = {
        "run_id": 7,
        "run_uid": run_ref(7).uid,
        "attempt": 1,
        "crawler": "plain",
        "tasks": tasks,
        "expires_at": expires_at,
        **changes,
    }
    return {name: value for name, value in body.items() if value is not ...}


@pytest.fixture
def deployer() -> FakeDeployer:
    return FakeDeployer()


@pytest.fixture
def client(deployer: FakeDeployer) -> Iterator[TestClient]:
    with TestClient(
        create_app(deployer, FakeCatalogue([CRAWLER])), base_url="http://scheduler:8600"
    ) as client:
        yield client


ONETIME, SCHEDULED = "/v1/deployments/onetime", "/v1/deployments/scheduled"


def test_with_a_token_everything_but_health_asks_for_it(deployer: FakeDeployer) -> None:
    app = create_app(deployer, FakeCatalogue([CRAWLER]), token="t" * 32)
    operations = [
        (method, path) for path, item in app.openapi()["paths"].items() for method in item
    ]
    assert len(operations) > 4
    with TestClient(app, base_url="http://scheduler:8600") as client:
        for method, path in operations:
            open_to_all = path in ("/healthz", "/readyz")
            for shown in (
                None,
                "Bearer wrong",
                "Bearer ",
                "Basic dDp0",
                "Bearer " + "t" * 31,
                "t" * 32,
            ):
                answer = client.request(
                    method, path, headers={"Authorization": shown} if shown else {}
                )
                assert (answer.status_code in (401, 429)) is not open_to_all, (method, path, shown)
                if answer.status_code == 401:
                    assert answer.headers["www-authenticate"].startswith("Bearer ")
            assert (
                client.request(
                    method, path, headers={"Authorization": "Bearer " + "t" * 32}
                ).status_code
                != 401
            )
        assert deployer.deployments == []
        done = client.post(ONETIME, json=_body(), headers={"Authorization": "Bearer " + "t" * 32})
        assert done.status_code == 201


def test_code_that_tasks_could_not_fetch_is_refused_with_what_helps(
    client: TestClient, deployer: FakeDeployer
) -> None:
    code = {"digest": f"sha256:{'1' * 64}", "version": "v1"}
    answer = client.post(ONETIME, json=_body(code=code))
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert "LIFECYCLE_GATEWAY__TASK_KEY is not set" in detail
    assert "crawlctl dev --cluster kubernetes executes only images" in detail
    assert deployer.deployments == []


def test_guesses_are_slowed_down_and_the_right_token_gets_in(deployer: FakeDeployer) -> None:
    app = create_app(deployer, FakeCatalogue([CRAWLER]), token="t" * 32)
    with TestClient(app, base_url="http://scheduler:8600") as client:
        answers = [
            client.get("/v1/crawlers", headers={"Authorization": f"Bearer {n}"}) for n in range(13)
        ]
        assert {answer.status_code for answer in answers[:10]} == {401}
        assert answers[-1].status_code == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert client.get("/v1/crawlers").status_code == 401
        assert (
            client.get("/v1/crawlers", headers={"Authorization": "Bearer " + "t" * 32}).status_code
            == 200
        )


def test_created_is_201_and_existing_is_200(client: TestClient) -> None:
    first = client.post(ONETIME, json=_body())
    assert first.status_code == 201
    assert first.json() == {
        "tasks": [
            {"index": 0, "name": "crawl-7-0-1", "uid": "uid-1", "state": "created", "reason": None}
        ]
    }
    second = client.post(ONETIME, json=_body())
    assert (second.status_code, second.json()["tasks"][0]["state"]) == (200, "existing")
    more = client.post(
        ONETIME, json=_body(tasks=[{"task_id": 70, "index": 0}, {"task_id": 71, "index": 1}])
    )
    assert more.status_code == 201


def test_nothing_but_deferred_is_200(client: TestClient, deployer: FakeDeployer) -> None:
    deployer.deferred[0] = "quota"
    answer = client.post(ONETIME, json=_body())
    assert (answer.status_code, answer.json()["tasks"][0]["reason"]) == (200, "quota")


def test_a_scheduled_run_carries_its_time_and_a_onetime_run_may_not(
    client: TestClient, deployer: FakeDeployer
) -> None:
    due = "2026-11-20T12:00:00Z"
    assert client.post(SCHEDULED, json=_body(due_at=due)).status_code == 201
    assert deployer.deployments[0].scheduled
    assert deployer.deployments[0].due_at == datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert client.post(ONETIME, json=_body(due_at=due)).json()["errors"][0]["field"] == "due_at"


def test_a_wrong_call_names_the_field_and_creates_nothing(
    client: TestClient, deployer: FakeDeployer
) -> None:
    for changes, field in [
        ({"run_uid": ...}, "run_uid"),
        ({"run_uid": "7"}, "run_uid"),
        ({"run_id": ...}, "run_id"),
        ({"run_id": 0}, "run_id"),
        ({"run_id": "7"}, "run_id"),
        ({"run_id": True}, "run_id"),
        ({"attempt": 0}, "attempt"),
        ({"tasks": []}, "tasks"),
        ({"tasks": [{"task_id": n + 1, "index": n} for n in range(501)]}, "tasks"),
        ({"tasks": [{"task_id": 1, "index": -1}]}, "tasks[0].index"),
        ({"tasks": [{"task_id": 1, "index": 0, "name": "x"}]}, "tasks[0].name"),
        ({"tasks": [{"task_id": 1, "index": 0}, {"task_id": 2, "index": 0}]}, "tasks[1].index"),
        ({"tasks": [{"task_id": 1, "index": 0, "args": {"page": 1}}]}, "tasks[0].args.page"),
        (
            {"tasks": [{"task_id": 1, "index": 0}, {"task_id": 2, "index": 1, "args": {"x": ""}}]},
            "tasks[1].args.x",
        ),
        ({"args": {"x": ""}}, "args.x"),
        ({"args": {"page": "a\0b"}}, "args.page"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-14:00"}, "expires_at"),
        ({"limits": {"stop_grace_s": -1}}, "limits.stop_grace_s"),
        ({"limits": {"grace": 1}}, "limits.grace"),
        ({"resources": {"memory": "lots"}}, "resources.memory"),
        ({"resume": "yes"}, "resume"),
        ({"priority": 0}, "priority"),
        ({"priority": 6}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"max_parallel_tasks": 3}, "max_parallel_tasks"),
        ({"crawler": "nope"}, "crawler"),
        ({"crawler": None}, "crawler"),
    ]:
        answer = client.post(ONETIME, json=_body(**changes))
        assert answer.status_code == 422, changes
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["errors"][0]["field"] == field
        assert field in answer.json()["detail"]
        assert deployer.deployments == []


def test_an_expired_call_is_410_and_a_cluster_away_is_503(
    client: TestClient, deployer: FakeDeployer
) -> None:
    deployer.faults.add(DeploymentExpired("too late"))
    deployer.faults.add(ClusterUnavailable("no answer"))
    assert client.post(ONETIME, json=_body()).json()["code"] == "deployment_expired"
    answer = client.post(ONETIME, json=_body())
    assert (answer.status_code, answer.json()["code"]) == (503, "cluster_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert client.post(ONETIME, json=_body()).status_code == 201


def test_what_the_cluster_asks_us_to_wait_is_passed_on(
    client: TestClient, deployer: FakeDeployer
) -> None:
    busy = ClusterUnavailable("too many requests")
    busy.retry_after_s = 17.2
    deployer.faults.add(busy)
    assert client.post(ONETIME, json=_body()).headers["retry-after"] == "18"


def test_a_bug_of_the_cluster_is_500(
    client: TestClient, deployer: FakeDeployer, caplog: pytest.LogCaptureFixture
) -> None:
    deployer.faults.add(KeyError("inside"))  # type: ignore[arg-type]
    answer = client.post(ONETIME, json=_body())
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "inside" not in answer.text
    assert "inside" in caplog.text


def test_pages_cannot_deploy(client: TestClient, deployer: FakeDeployer) -> None:
    answer = client.post(ONETIME, json=_body(), headers={"origin": "http://127.0.0.1:8600"})
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
    assert deployer.deployments == []


def test_crawlers_are_shown_without_the_values_of_their_environment(client: TestClient) -> None:
    answer = client.get("/v1/crawlers")
    assert "canary" not in answer.text
    [crawler] = answer.json()["crawlers"]
    assert crawler["env"] == {"PASSWORD": "…"}


def test_a_broken_catalogue_makes_it_unready_and_nothing_else(
    client: TestClient, deployer: FakeDeployer
) -> None:
    catalogue = FakeCatalogue([CRAWLER])
    catalogue.problem = "crawlers.yaml:3: …"  # type: ignore[attr-defined]
    broken = TestClient(create_app(deployer, catalogue))
    assert broken.get("/readyz").status_code == 503
    assert broken.get("/healthz").status_code == 200
    assert broken.post(ONETIME, json=_body()).status_code == 201
    assert client.get("/readyz").json() == {"ready": True, "checks": {"catalogue": "ok"}}


def test_the_schema(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    operations = {o["operationId"]: o for path in document["paths"].values() for o in path.values()}
    assert sorted(operations) == [
        "deployOnetime",
        "deployScheduled",
        "healthz",
        "listCrawlers",
        "metrics",
        "readyz",
    ]
    reference = operations["deployScheduled"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["$ref"]
    scheduled = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert "due_at" in scheduled["properties"]
    text = json.dumps(document)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document["components"]["schemas"]
    assert client.get("/docs").status_code == 404


# --- the process ----------------------------------------------------------------------------------

CODE = "import sys; from crawler_lifecycle.scheduler.serve import serve; from crawler_lifecycle.settings import Settings; "
CODE += "sys.exit(serve(Settings.load()))"


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    (tmp_path / "crawlers.yaml").write_text("- name: plain\n  kind: command\n  command: ['true']\n")
    return {"PATH": os.environ["PATH"], "LIFECYCLE_SCHEDULER__PORT": "0", **more}


@pytest.mark.processes
def test_it_serves_the_local_cluster_and_leaves_when_asked(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE],
        env=_environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stderr is not None
        found = next(
            filter(
                None, (re.search(r"listens on (http://[^\s\"]+)", line) for line in process.stderr)
            )
        )
        assert httpx.get(f"{found[1]}/healthz", timeout=60).status_code == 200
        crawlers = httpx.get(f"{found[1]}/v1/crawlers", timeout=60).json()["crawlers"]
        assert [crawler["name"] for crawler in crawlers] == ["plain"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.processes
@pytest.mark.parametrize(
    "what", ["port", "kubernetes", "catalogue", "host", "reachable", "guessable"]
)
def test_what_prevents_a_start_is_one_line_and_exit_1(tmp_path: Path, what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        more, told = {
            "port": (
                {"LIFECYCLE_SCHEDULER__PORT": port},
                rf"127\.0\.0\.1:{port}: the address is taken; .*__PORT",
            ),
            "kubernetes": (
                {
                    "LIFECYCLE_CLUSTER__KIND": "kubernetes",
                    "LIFECYCLE_CLUSTER__KUBECONFIG": "none.conf",
                },
                r"kubeconfig: 'none\.conf' is not a file",
            ),
            "catalogue": ({"LIFECYCLE_CATALOGUE": "none.yaml"}, r"none\.yaml: cannot be read"),
            "host": (
                {"LIFECYCLE_SCHEDULER__HOST": "192.0.2.1", "LIFECYCLE_SCHEDULER__TOKEN": "t" * 32},
                r"192\.0\.2\.1:0: cannot listen .*__HOST",
            ),
            "reachable": (
                {"LIFECYCLE_SCHEDULER__HOST": "0.0.0.0"},
                r"LIFECYCLE_SCHEDULER__HOST: '0\.0\.0\.0' can be reached .*LIFECYCLE_SCHEDULER__TOKEN",
            ),
            "guessable": (
                {"LIFECYCLE_SCHEDULER__TOKEN": "hunter2"},
                "LIFECYCLE_SCHEDULER__TOKEN: 7 characters are too few",
            ),
        }[what]
        environment = _environment(tmp_path, **more)
        command = [sys.executable, "-c", CODE]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert re.search(f"^error: .*{told}", line)

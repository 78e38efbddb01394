"""The scheduler service with the settings of a Kubernetes cluster, from the HTTP call to the Job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.adapters.scheduler import _DEFINITION
from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.scheduler.app import create_app
from crawler_lifecycle.scheduler.serve import _child_tasks
from crawler_lifecycle.settings import Settings
from tests.support.kube_api import Answer, FakeApiServer, throttled
from tests.support.kube_api.store import JOBS, NAMESPACES
from tests.support.run_refs import run_ref

CATALOGUE = """\
- name: shops
  project: crawlers
  image: crawl.test/shops:1
  args: {country: {default: de}}
  resources: {memory: 512Mi}
  kubernetes:
    tolerations: [{key: crawlers, operator: Exists}]
    volumes: [{name: models, mount_path: /models, claim: models}]
    requests: {cpu: 100m}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApiServer]:
    with FakeApiServer(tmp_path, "pods-of-ours") as server:
        yield server


@pytest.fixture
def client(tmp_path: Path, server: FakeApiServer) -> Iterator[TestClient]:
    file = tmp_path / "crawlers.yaml"
    file.write_text(CATALOGUE)
    cluster = {"kind": "kubernetes", "namespace": "pods-of-ours", "kubeconfig": server.kubeconfig()}
    gateway = {"url": "http://gateway.example", "task_key": "k" * 32}
    rules = {"onetime_priority_class": "crawl-high", "scheduled_priority_class": "crawl-low"}
    settings = Settings.model_validate({"cluster": {**cluster, **rules}, "gateway": gateway})
    kind = kind_of(settings.cluster)
    assert not kind.clears_itself, "the cluster itself clears away what ended"
    deployer = kind.deployer(_child_tasks(settings))
    assert isinstance(deployer, KubernetesDeployer)
    with TestClient(
        create_app(deployer, YamlCatalogue(file)), base_url="http://127.0.0.1"
    ) as client:
        yield client
    deployer.close()


def body(**more: Any) -> dict[str, Any]:
    until = (datetime.now(UTC) + timedelta(seconds=120)).isoformat()
    tasks = [
        {"task_id": 70 + n, "index": n, "args": {"country": country}}
        for n, country in enumerate(("at", "ch"))
    ]
    return {
        "run_id": 7,
        "run_uid": run_ref(7).uid,
        "attempt": 1,
        "crawler": "shops",
        "tasks": tasks,
        "expires_at": until,
        **more,
    }


def test_a_call_becomes_jobs_by_the_catalogue_and_the_settings(
    client: TestClient, server: FakeApiServer
) -> None:
    answer = client.post("/v1/deployments/onetime", json=body(resources={"memory": "1Gi"}))
    assert answer.status_code == 201
    assert [task["state"] for task in answer.json()["tasks"]] == ["created", "created"]
    job = server.job("crawl-7-1-1")
    assert answer.json()["tasks"][1]["uid"] == job["metadata"]["uid"]
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert json.loads(env["CRAWL_ARGS"]) == {"country": "ch"}
    assert (env["CRAWL_MEMORY_LIMIT"], env["CRAWL_GATEWAY_URL"]) == (
        str(2**30),
        "http://gateway.example",
    )
    assert env["CRAWL_TOKEN"] is None, "a token is never a plain value"
    assert "--project=crawlers" in container["command"]
    assert (pod["priorityClassName"], pod["tolerations"][0]["key"]) == ("crawl-high", "crawlers")


def test_a_busy_cluster_is_503_with_its_own_wait(client: TestClient, server: FakeApiServer) -> None:
    server.faults.add("POST", "/jobs", throttled("11"))
    answer = client.post("/v1/deployments/onetime", json=body())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "11")
    assert client.post("/v1/deployments/onetime", json=body()).status_code == 201


def test_a_missing_right_is_503_and_never_a_refusal(
    client: TestClient, server: FakeApiServer
) -> None:
    server.deny("create", "jobs")
    answer = client.post("/v1/deployments/onetime", json=body())
    assert (answer.status_code, answer.json()["code"]) == (503, "cluster_unavailable")
    assert "needs permission to create jobs" in answer.json()["detail"]


def test_a_caller_that_looks_elsewhere_gets_421_and_no_job(
    client: TestClient, server: FakeApiServer
) -> None:
    uid = server.store.get(NAMESPACES, ("", "pods-of-ours"))["metadata"]["uid"]
    for place in ("crawls/-/-", "pods-of-ours/of-another-cluster/-", f"crawls/{uid}/-", "anything"):
        answer = client.post("/v1/deployments/onetime", json=body(place=place))
        assert (answer.status_code, answer.json()["code"]) == (421, "other_place")
        assert "LIFECYCLE_CLUSTER__NAMESPACE" in answer.json()["detail"]
        assert server.store.find(JOBS) == []
    assert (
        client.post("/v1/deployments/onetime", json=body(place=f"pods-of-ours/{uid}/-")).status_code
        == 201
    )


def test_one_task_that_is_refused_is_an_answer_of_its_own(
    client: TestClient, server: FakeApiServer
) -> None:
    server.faults.add("POST", "/jobs", Answer(422, "Job.batch is invalid: spec: Invalid value"))
    answer = client.post("/v1/deployments/onetime", json=body())
    assert answer.status_code == 201
    assert sorted(task["state"] for task in answer.json()["tasks"]) == ["created", "refused"]
    assert len(server.store.find(JOBS)) == 1


def test_the_catalogue_crosses_the_wire_whole(client: TestClient, tmp_path: Path) -> None:
    [found] = client.get("/v1/crawlers").json()["crawlers"]
    assert found["kubernetes"]["requests"] == {"cpu": "100m", "memory": None}
    [there] = YamlCatalogue(tmp_path / "crawlers.yaml").all()
    assert _DEFINITION.validate_python(found) == there

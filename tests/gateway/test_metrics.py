"""The gateway's metrics about itself."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.features.packages.store.packages import NewVersion
from tests.gateway.gateway_harness import Harness


def _samples(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (
            sample.name.removeprefix("crawler_lifecycle_gateway_"),
            tuple(sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_requests_are_counted_by_operation_and_never_by_what_callers_write(
    client: TestClient,
) -> None:
    for path in (
        "/v1/runs",
        "/v1/runs",
        "/v1/runs/471147114711",
        "/v1/runs/x",
        "/v2/secret",
        "/v1/runs?x=1",
    ):
        client.get(path)
    client.get("/v1/runs", headers={"host": "evil.example"})
    found = _samples(client)
    requests = {key[1]: value for key, value in found.items() if key[0] == "requests_total"}
    assert requests == {
        (("operation", "listRuns"), ("status", "200")): 2,
        (("operation", "listRuns"), ("status", "422")): 1,
        (("operation", "getRun"), ("status", "404")): 1,
        (("operation", "getRun"), ("status", "422")): 1,
        (("operation", "none"), ("status", "404")): 1,
        (("operation", "none"), ("status", "403")): 1,
    }
    assert found["answer_seconds_count", (("operation", "listRuns"),)] == 3
    text = client.get("/metrics").text
    assert "secret" not in text
    assert "471147114711" not in text
    assert not re.search("evil", text)


def test_what_the_gateway_needs_is_told(harness: Harness) -> None:
    with harness.client() as client:
        found = _samples(client)
        assert found["available", (("part", "database"),)] == 1
        assert found["available", (("part", "temporal"),)] == 1
        assert found["stream_readers", (("stream", "events"),)] == 0
        assert found["stream_dropped_total", (("stream", "log"),)] == 0
    harness.workflows.down = True
    with harness.client(harness.new_app()) as client:
        assert _samples(client)["available", (("part", "temporal"),)] == 0


def test_two_gateways_in_one_process_count_apart(harness: Harness) -> None:
    with harness.client() as one, harness.client(harness.new_app()) as two:
        one.get("/healthz")
        key = ("requests_total", (("operation", "healthz"), ("status", "200")))
        assert _samples(one)[key] == 1
        assert key not in _samples(two)


def test_the_current_versions_of_packages_are_metrics(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.metrics.FRESH_S", -1)

    def shown() -> set[tuple[str, ...]]:
        return {
            tuple(value for _, value in labels)
            for (name, labels), value in _samples(client).items()
            if name == "lifecycle_package_info" and value == 1
        }

    def deploy(package: str, version: str) -> tuple[str, ...]:
        new = NewVersion(package, version, "sha256:" + version[-1] * 64, 9, 1)
        found = harness.store.packages.add_version(new).version
        return found.digest, package, "default", version

    assert shown() == set()
    deploy("shop", 'old "1"')
    current = {deploy("shop", "v2"), deploy("news", "v3")}
    assert shown() == current, "an older version has no sample any more"
    monkeypatch.setattr("crawler_lifecycle.gateway.metrics.PACKAGES_MAX", 1)
    assert {labels[1] for labels in shown()} == {"news"}

    def fails(*_: object) -> list[object]:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(harness.store.packages, "list_packages", fails)
    assert shown() == set()

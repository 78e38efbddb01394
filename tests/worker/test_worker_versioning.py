"""The version of a worker, and how much it caches; without a version, nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.common import VersioningBehavior

from crawler_lifecycle.compose import ROLES
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.settings import Settings, WorkerSettings
from crawler_lifecycle.worker import polling
from crawler_lifecycle.worker.polling import deployment_of


@pytest.fixture(autouse=True)
def no_build_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_WORKER_BUILD_ID", "TEMPORAL_DEPLOYMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("given", "version"), [
    ({}, None),
    ({"build_id": "3f2a"}, ("crawler-lifecycle", "3f2a")),
    ({"build_id": "1.4.0-rc.1", "deployment": "crawls_eu"}, ("crawls_eu", "1.4.0-rc.1")),
])  # fmt: skip
def test_the_version_of_a_worker(given: dict[str, str], version: tuple[str, str] | None) -> None:
    settings = WorkerSettings(**given)
    assert settings.version() == version
    config = deployment_of(settings)
    if version is None:
        assert config is None
        return
    assert config is not None
    assert (config.version.deployment_name, config.version.build_id) == version
    assert config.use_worker_versioning
    assert config.default_versioning_behavior is VersioningBehavior.AUTO_UPGRADE


@pytest.mark.parametrize("version", [{}, {"build_id": "3f2a"}])
def test_no_code_is_read_to_name_a_build(
    version: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would read the code of all modules, and accepts no name next to a version."""
    made: dict[str, Any] = {}
    monkeypatch.setattr(polling, "Worker", lambda _, **options: made.update(options))
    monkeypatch.setattr(polling, "activities_of", lambda *_: [])
    settings: Any = WorkerSettings(**version)
    none: Any = None
    polling.worker(none, next(iter(ROLES)), none, settings, none, deployment_of(settings))
    assert (made["build_id"], made["deployment_config"] is None) == (
        None if version else release(),
        not version,
    )


def test_an_image_knows_its_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_WORKER_BUILD_ID", "of-the-image")
    assert WorkerSettings().version() is None, "an id alone that others set versions nobody"
    assert WorkerSettings(deployment="crawls").version() == ("crawls", "of-the-image")
    assert WorkerSettings(deployment="crawls", build_id="mine").version() == ("crawls", "mine")


def test_temporals_worker_controller_names_deployment_and_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One deployment for each role, with the namespace in its name."""
    monkeypatch.setenv("TEMPORAL_DEPLOYMENT_NAME", "crawls/worker-cluster")
    with pytest.raises(InvalidRequest, match=r"missing for the deployment 'crawls/worker-cluster'"):
        WorkerSettings().version()
    monkeypatch.setenv("TEMPORAL_WORKER_BUILD_ID", "5c10-2144")
    assert WorkerSettings().version() == ("crawls/worker-cluster", "5c10-2144")
    assert WorkerSettings(deployment="ours", build_id="mine").version() == ("ours", "mine")


def test_a_deployment_without_a_build_is_named() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"LIFECYCLE_WORKER__BUILD_ID: missing for the deployment 'crawls'; set",
    ):
        WorkerSettings(deployment="crawls").version()


@pytest.mark.parametrize(("name", "value"), [
    ("BUILD_ID", "a b"), ("BUILD_ID", "x" * 101), ("BUILD_ID", "-x"), ("BUILD_ID", "a:b"),
    ("DEPLOYMENT", "a.b"), ("DEPLOYMENT", "crawls/eu"), ("DEPLOYMENT", "x" * 61),
])  # fmt: skip
def test_a_name_that_the_server_would_refuse_is_refused_at_the_start(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"LIFECYCLE_WORKER__{name}", value)
    with pytest.raises(InvalidRequest, match=f"LIFECYCLE_WORKER__{name}"):
        Settings.load()


@pytest.mark.parametrize(("memory", "runs"), [("256Mi", 1310), ("2Gi", 10485), ("1Mi", 5)])
def test_the_memory_is_a_number_of_runs(memory: str, runs: int) -> None:
    assert WorkerSettings(cache_memory=memory).cached() == runs


@pytest.mark.parametrize("memory", ["much", "0", "1Ki", "1e30", ""])
def test_memory_that_cannot_be_is_refused_by_its_name(memory: str) -> None:
    with pytest.raises(ValidationError, match=r"cache_memory\n.*(not allowed|give)"):
        WorkerSettings(cache_memory=memory)

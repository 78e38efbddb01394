"""The worker as a process: what it reports if something is missing, and how it exits."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.operatorservice.v1 import (
    ListSearchAttributesRequest,
    RemoveSearchAttributesRequest,
)
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.compose import (
    ASKING,
    OBSERVER,
    ROLES,
    activities_of,
    all_activities,
    build_catalogue,
)
from crawler_lifecycle.domain.errors import CatalogueError, InvalidRequest
from crawler_lifecycle.domain.names import QUEUE_FUNCTIONS, SEARCH_ATTRIBUTES
from crawler_lifecycle.settings import Settings
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.worker.process import check_roles
from crawler_lifecycle.workflows.policies import POLICIES
from tests.support.temporal import temporal_server
from tests.support.testbed import open_testbed

NOBODY = "127.0.0.1:1"


def environment(folder: Path, port: int, **settings: str) -> dict[str, str]:
    """Return the environment of a worker whose probe listens there."""
    (folder / "crawlers.yaml").write_text(
        "- name: demo\n  kind: command\n  command: [python, -V]\n"
    )
    known = {
        "LIFECYCLE_DATABASE__URL": f"sqlite:///{folder / 'runs.db'}",
        "LIFECYCLE_CLUSTER__STATE_DIR": str(folder / "cluster"),
        "LIFECYCLE_CATALOGUE": str(folder / "crawlers.yaml"),
        "LIFECYCLE_WORKER__HEALTH_PORT": str(port),
        "TEMPORAL_ADDRESS": NOBODY,
    }
    return {**os.environ, **known, **settings}


def refused(folder: Path, *words: str, **settings: str) -> tuple[int, str]:
    """Return exit code and output of a worker that does not start."""
    env, command = (
        environment(folder, processes.free_port(), **settings),
        [sys.executable, "-m", "crawler_lifecycle.cli"],
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "worker", *words], env=env, cwd=root, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


class WorkerProcess:
    """``crawlctl worker`` with its own environment."""

    def __init__(self, folder: Path, role: str = "all", **settings: str) -> None:
        self.port = processes.free_port()
        env = environment(folder, self.port, **settings)
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"workers.{role}"], cwd=Path(__file__).parents[2], env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of ``/readyz``, or (0, {}) while nobody listens."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/readyz", timeout=30
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    def until(
        self, condition: Callable[[int, dict[str, Any]], object], seconds: float = 150
    ) -> dict[str, Any]:
        """Poll readiness until it matches."""
        deadline = time.monotonic() + seconds
        while True:
            status, body = self.ready()
            if condition(status, body):
                return body
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, (
                f"it did not come within {seconds:g} s: {status} {body}"
            )
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send it a signal. Returns exit code and output."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def make(**settings: str) -> WorkerProcess:
        started.append(WorkerProcess(tmp_path, **settings))
        return started[-1]

    yield make
    for worker in started:
        worker.end(signal.SIGKILL)


@pytest.mark.processes
def test_without_temporal_it_waits_and_says_so(start: Callable[..., WorkerProcess]) -> None:
    worker = start()
    missing = worker.until(lambda status, body: status == 503 and "no Temporal" in str(body))[
        "missing"
    ]
    assert "TEMPORAL_ADDRESS" in missing["temporal"]
    code, said = worker.end()
    assert code == 0
    assert "not ready: temporal" in said


@pytest.mark.processes
@pytest.mark.parametrize(
    "role",
    [
        role if role in ("cluster", "export") else pytest.param(role, marks=pytest.mark.slow)
        for role in sorted(ROLES)
    ],
)
def test_only_roles_that_ask_the_cluster_need_a_way_to_it(
    start: Callable[..., WorkerProcess], tmp_path: Path, role: str
) -> None:
    """As in a pod without a token: no kubeconfig, and nothing that identifies us."""
    place = {"LIFECYCLE_CLUSTER__KIND": "kubernetes", "KUBECONFIG": "", "HOME": str(tmp_path)}
    if role in ASKING:
        code, said = refused(tmp_path, role, **place)
        assert code == 1, said
        assert "LIFECYCLE_CLUSTER__KUBECONFIG" in said
        return
    worker = start(role=role, **place)
    worker.until(lambda status, body: status == 503 and "no Temporal" in str(body))
    assert worker.end()[0] == 0


@pytest.mark.processes
@pytest.mark.parametrize(("settings", "words"), [
    ({"LIFECYCLE_DATABASE__URL": "oracle://u:secret@h/x"}, ["LIFECYCLE_DATABASE__URL", "oracle"]),
    ({"LIFECYCLE_CLUSTER__KIND": "swarm"}, ["LIFECYCLE_CLUSTER__KIND", "'swarm'"]),
    ({"LIFECYCLE_WORKER__THREADS": "none"}, ["LIFECYCLE_WORKER__THREADS", "'none'"]),
    ({"LIFECYCLE_POOLS": "{a: 1}"}, ["pools", "give JSON", "line 1 column 2"]),
    ({"LIFECYCLE_CONFIG": "nowhere.toml"}, ["LIFECYCLE_CONFIG", "nowhere.toml"]),
])  # fmt: skip
def test_a_wrong_setting_is_named_with_its_value(
    tmp_path: Path, settings: dict[str, str], words: list[str]
) -> None:
    code, said = refused(tmp_path, **settings)
    assert code in (1, 2), said
    assert all(word in said for word in words), said
    assert "secret" not in said
    assert "Traceback" not in said


@pytest.mark.processes
@pytest.mark.parametrize(
    "setting", ["LIFECYCLE_WORKER__HEALTH_PORT", "LIFECYCLE_WORKER__METRICS_PORT"]
)
def test_a_taken_port_is_named(start: Callable[..., WorkerProcess], setting: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        worker = start(**{setting: str(port)})
        code, said = worker.process.wait(120), worker.process.communicate()[1]
    assert code == 1
    assert f"127.0.0.1:{port}" in said
    assert setting in said
    assert "Traceback" not in said


@pytest.mark.processes
def test_traces_without_the_extra_are_an_error_at_the_start(
    start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked" / "opentelemetry" / "exporter"
    blocked.mkdir(parents=True)
    (blocked.parent / "__init__.py").write_text("raise ImportError('not installed')\n")
    worker = start(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        PYTHONPATH=os.pathsep.join((str(tmp_path / "blocked"), str(Path(__file__).parents[2]))),
    )
    code, said = worker.process.wait(120), worker.process.communicate()[1]
    assert code == 1
    assert "crawler-lifecycle[otel]" in said
    assert "Traceback" not in said


@pytest.mark.processes
def test_health_can_be_asked_over_ipv6_where_there_is_one(
    start: Callable[..., WorkerProcess],
) -> None:
    worker = start(LIFECYCLE_WORKER__HEALTH_HOST="::1")
    if not _has_ipv6():
        code, said = worker.process.wait(120), worker.process.communicate()[1]
        assert code == 1
        assert "LIFECYCLE_WORKER__HEALTH_" in said
        return
    deadline = time.monotonic() + 150
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("::1", worker.port), timeout=30),
        ):
            break
        assert time.monotonic() < deadline, "its probe did not come within 150 s"
        time.sleep(0.05)
    assert worker.end()[0] == 0


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_catalogue_is_needed_only_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIFECYCLE_CATALOGUE", raising=False)
    assert build_catalogue(Settings.load()).all() == []
    (tmp_path / "crawlers.yaml").write_text(
        "- name: demo\n  kind: command\n  command: [python, -V]\n"
    )
    assert [c.name for c in build_catalogue(Settings.load()).all()] == ["demo"]
    monkeypatch.setenv("LIFECYCLE_CATALOGUE", "nowhere.yaml")
    with pytest.raises(CatalogueError, match=r"nowhere\.yaml"):
        build_catalogue(Settings.load())


def test_roles_are_checked_by_name() -> None:
    assert check_roles([]) == check_roles(["all"]) == list(ROLES)
    assert check_roles(["control", "control"]) == ["control"]
    assert OBSERVER not in check_roles([])
    assert check_roles([OBSERVER]) == [OBSERVER]
    with pytest.raises(InvalidRequest, match="role: 'k8s' is unknown"):
        check_roles(["k8s"])


# --- with a server --------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    async with temporal_server(skipping=False) as env:
        yield env


@pytest.mark.asyncio(loop_scope="session")
async def test_every_activity_is_served_where_the_policies_send_it(
    server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with open_testbed(server.client, tmp_path, workers=False) as testbed:
        assert set(all_activities(testbed.parts)) == set(POLICIES)
        served = {
            queue: {
                a.__temporal_activity_definition.name
                for a in activities_of(role, testbed.parts, queue)
            }
            for role, queue in [*ROLES.items(), ("user-code", QUEUE_FUNCTIONS)]
        }
        assert all(name in served[policy.queue] for name, policy in POLICIES.items())


@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="session")
async def test_it_registers_what_is_missing_names_an_old_schema_and_leaves_in_order(
    server: WorkflowEnvironment, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    client = server.client
    operator = client.operator_service
    await operator.remove_search_attributes(
        RemoveSearchAttributesRequest(
            namespace=client.namespace, search_attributes=["CrawlStatus", "CrawlRunId"]
        )
    )
    worker = start(
        TEMPORAL_ADDRESS=client.service_client.config.target_host,
        TEMPORAL_NAMESPACE=client.namespace,
    )
    missing = worker.until(lambda status, body: "database" in body.get("missing", {}))["missing"]
    assert "crawlctl db upgrade" in missing["database"]
    upgrade(f"sqlite:///{tmp_path / 'runs.db'}")
    worker.until(lambda status, body: status == 200)
    known = await operator.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    assert set(SEARCH_ATTRIBUTES) <= set(known.custom_attributes)
    code, said = worker.end()
    assert code == 0
    assert "worker ready" in said
    assert "Traceback" not in said


@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="session")
async def test_a_process_that_only_observes_is_ready_while_it_sees(
    server: WorkflowEnvironment, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    upgrade(f"sqlite:///{tmp_path / 'runs.db'}")
    client = server.client
    observer = start(
        role="observer",
        TEMPORAL_ADDRESS=client.service_client.config.target_host,
        TEMPORAL_NAMESPACE=client.namespace,
        LIFECYCLE_WORKER__WAKE_UPS="false",
    )
    assert observer.until(lambda status, body: status == 200)["wake_ups"]["observer"] == "up"
    state = tmp_path / "cluster"
    _replaced(state, tmp_path / "away")
    missing = observer.until(lambda status, body: "observer" in body.get("missing", {}))["missing"]
    assert "the local cluster cannot be watched" in missing["observer"]
    state.unlink()
    observer.until(lambda status, body: status == 200)
    code, said = observer.end()
    assert code == 0
    assert "Traceback" not in said


def _replaced(state: Path, away: Path) -> None:
    """Replace the folder by a file.

    If the observer creates the folder again in between, that one is removed, too.
    """
    state.rename(away)
    deadline = time.monotonic() + 150
    while True:
        try:
            return state.touch(exist_ok=False)
        except FileExistsError:
            assert time.monotonic() < deadline, "a free place did not come within 150 s"
            shutil.rmtree(state, ignore_errors=True)


@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="session")
async def test_while_it_serves_readiness_says_what_the_database_has_become(
    server: WorkflowEnvironment, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    client, file = server.client, tmp_path / "runs.db"
    upgrade(f"sqlite:///{file}")
    worker = start(
        TEMPORAL_ADDRESS=client.service_client.config.target_host,
        TEMPORAL_NAMESPACE=client.namespace,
    )
    worker.until(lambda status, body: status == 200)

    def version(statement: str) -> str:
        with contextlib.closing(sqlite_files.connect(file, timeout=60)) as database, database:
            known = database.execute("SELECT version_num FROM alembic_version").fetchone()
            database.execute(statement)
        return str(known[0]) if known else ""

    real = version("UPDATE alembic_version SET version_num = '0999'")
    with contextlib.closing(sqlite_files.connect(file, timeout=60)) as database, database:
        database.execute("UPDATE schema_compatibility SET works_from = '0999'")
    worker.until(lambda status, body: "0999" in body.get("missing", {}).get("database", ""))
    version("DELETE FROM alembic_version")
    worker.until(lambda status, body: "none" in body.get("missing", {}).get("database", ""))
    version(f"INSERT INTO alembic_version VALUES ('{real}')")
    assert worker.until(lambda status, body: status == 200)["missing"] == {}
    code, said = worker.end()
    assert code == 0
    assert "is available again" in said

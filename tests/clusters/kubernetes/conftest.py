from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from tests.clusters.kubernetes.polls.harness import Harness
from tests.support.kube_api import FakeApiServer
from tests.support.kube_api.clients import patient


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApiServer]:
    with FakeApiServer(tmp_path) as server:
        yield server


@pytest.fixture
def api(server: FakeApiServer) -> Iterator[Api]:
    api = patient(server)
    yield api
    api.close()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.close()

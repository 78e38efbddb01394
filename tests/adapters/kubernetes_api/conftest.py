from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.kubernetes.api import Api
from tests.support.kube_api import FakeApiServer

#: Seconds of silence after which these tests' clients give up. Nothing but a scripted fault is ever silent.
READ_S = 1.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApiServer]:
    with FakeApiServer(tmp_path) as server:
        yield server


@pytest.fixture
def api(server: FakeApiServer) -> Iterator[Api]:
    api = Api.connect(kubeconfig=server.kubeconfig(), namespace="crawls", connect_s=1.0, read_s=READ_S)
    yield api
    api.close()

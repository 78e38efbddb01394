"""Shared fixtures for tests of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.gateway import health
from crawler_lifecycle.gateway.access import recorder, tokens
from crawler_lifecycle.gateway.runs import blocked
from crawler_lifecycle.store.store import open_store
from tests.gateway.gateway_harness import Clock, Harness
from tests.support.databases import make_tables


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These limits should not apply to a test that stalls for a while; tests of the limits set
    their own.
    """
    monkeypatch.setattr(health, "READY_TIMEOUT_S", 120.0)
    # Rows are written at the end of a gateway, and tokens are read at its start, or when a test
    # requests this.
    monkeypatch.setattr(recorder, "EVERY_S", 3600.0)
    monkeypatch.setattr(tokens, "KEPT_S", 3600.0)
    monkeypatch.setattr(blocked, "ANSWER_S", 120.0)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    clock = Clock()
    store = open_store(make_tables(f"sqlite:///{tmp_path}/runs.db"), pool_size=30, clock=clock)
    yield Harness(store, clock, tmp_path / "code")
    store.close()


@pytest.fixture
def client(harness: Harness) -> Iterator[TestClient]:
    with harness.client() as client:
        yield client

"""Fixtures of the tests that depend on the store being a SQL database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.harness import Clock
from tests.support.databases import empty_tables, make_tables
from tests.support.servers import DATABASES, SERVERS, empty_database, shared_server
from tests.support.sql_server import SqlServer


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table."""
    with empty_database(request.param, tmp_path / "folder" / "state.db") as url:
        yield url


@pytest.fixture
def current_url(empty_url: str) -> str:
    """The URL of a separate database with the schema of this build, for tests that change more than
    rows.
    """
    return make_tables(empty_url)


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest) -> SqlServer:
    """MariaDB, and then MySQL."""
    return shared_server(request.param)


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with the schema of this build and without rows."""
    return empty_tables(request.param, tmp_path / "state.db")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """A store on it."""
    with closing(open_store(store_url, clock=Clock())) as store:
        yield store

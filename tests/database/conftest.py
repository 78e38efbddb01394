"""Fixtures of the tests that know that the store is a SQL database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mariadb import MariaDb, mariadb

__all__ = ["mariadb"]


@pytest.fixture(params=["sqlite", "mariadb"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'folder' / 'state.db'}"
        return
    server: MariaDb = request.getfixturevalue("mariadb")
    with server.database() as url:
        yield url

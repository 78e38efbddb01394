"""Fixtures of the tests that know that the store is a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic import command

from crawler_lifecycle.adapters.database.engine import open_engine, parse_url
from crawler_lifecycle.adapters.database.migrations import schema_version as schema
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


@pytest.fixture
def upgrade_to() -> Callable[[str, str], None]:
    """Bring a database to an older version of the schema, as a build of that time did."""

    def upgrade_to(url: str, version: str) -> None:
        if url.startswith("sqlite"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        engine = open_engine(parse_url(url), pool_size=1)
        with engine.begin() as connection:
            config = schema._config()
            config.attributes["connection"] = connection
            command.upgrade(config, version)
        engine.dispose()

    return upgrade_to

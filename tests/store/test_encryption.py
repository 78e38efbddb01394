"""The database over TLS: an address with ``ssl_ca`` accepts only a server that this authority
certified, under its own name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import open_store
from tests.support.certificates import certificate
from tests.support.mariadb import running_mariadb

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a database on ``localhost``, with the tables, and the certificate of its
    server.
    """
    file = certificate(tmp_path_factory.mktemp("tls") / "server.pem", "localhost")
    with (
        running_mariadb(f"--ssl-cert={file}", f"--ssl-key={file}") as started,
        started.database() as url,
    ):
        address = url.replace("127.0.0.1", "localhost")
        upgrade(f"{address}?ssl_ca={file}")
        yield address, file


def test_the_server_of_the_authority_is_taken(server: tuple[str, Path]) -> None:
    address, file = server
    store = open_store(f"{address}?ssl_ca={file}")
    with store.database.engine.connect() as connection:
        assert (
            connection.execute(sa.text("SHOW STATUS LIKE 'Ssl_version'"))
            .one()[1]
            .startswith("TLSv1.")
        )
    store.close()


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_any_other_is_refused(server: tuple[str, Path], wrong: str, tmp_path: Path) -> None:
    address, file = server
    if wrong == "authority":
        file = certificate(tmp_path / "other.pem", "localhost")
    else:
        address = address.replace("localhost", "127.0.0.1")
    store = open_store(f"{address}?ssl_ca={file}")
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        store.runs.get_run(1)
    store.close()

"""What ``crawlctl db backup`` and ``restore`` print for a server is executed on it exactly as
printed.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle.store.migrations.schema_version import read_schema
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.harness import Clock, Harness
from tests.contracts.store.test_deletion import WORD, planted, where
from tests.support import in_process
from tests.support.databases import make_tables
from tests.support.servers import shared_server

pytestmark = pytest.mark.servers


def test_the_printed_commands_copy_a_server_and_put_the_copy_back(tmp_path: Path) -> None:
    with shared_server("mariadb").database() as url:
        make_tables(url)
        clock = Clock()
        with closing(open_store(url, clock=clock)) as store:
            planted(Harness(store, clock))
            there = where(store, WORD)
        words = ("db", "backup", str(tmp_path / "copy.sql"), "--url", url)
        said = in_process.crawlctl(*words, env=os.environ, folder=tmp_path)
        assert said.returncode == 2
        dump, put_back = (
            line.partition(": ")[2].strip() for line in said.stderr.splitlines() if "--host" in line
        )
        play(dump.replace("mysqldump", "mariadb-dump"))
        with closing(open_store(url)) as store, store.database.writing() as connection:
            connection.exec_driver_sql("DELETE FROM run_tag")
        play(put_back.replace("mysql ", "mariadb "))
        assert read_schema(url).problem is None
        with closing(open_store(url)) as store:
            assert where(store, WORD) == there, "compressed logs, too"


def play(command: str) -> None:
    done = subprocess.run(
        ["sh", "-c", command.replace("--password ", "")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr

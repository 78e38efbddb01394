"""The database, set up by hand exactly as docs/deployment.md says: users are created before their
tables.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.support import in_process
from tests.support.grants import grants
from tests.support.sql_server import SqlServer

DOCS = Path(__file__).parents[2] / "docs"
SECTION = "## An installation by hand"


def block(page: str, section: str, language: str) -> list[str]:
    """Return the lines of the first code block of a section."""
    text = (DOCS / page).read_text()
    found = re.search(rf"```{language}\n(.*?)```", text[text.index(f"\n{section}\n") :], re.S)
    return found[1].splitlines()


def here(statement: str) -> str:
    """Adapt them to a server on loopback, which would prefer its anonymous user to a user of any
    host.
    """
    return statement.removesuffix(";").replace("@'%'", "@'127.0.0.1'")


@pytest.fixture
def installed(server: SqlServer) -> Iterator[SqlServer]:
    try:
        for statement in block("deployment.md", SECTION, "sql"):
            server.execute(here(statement))
        yield server
    finally:
        server.execute("DROP DATABASE IF EXISTS lifecycle")
        for user in ("owner", "services"):
            server.execute(f"DROP USER IF EXISTS {user}@'127.0.0.1'")


def test_owner_and_services_have_what_they_need_and_no_more(
    installed: SqlServer, tmp_path: Path
) -> None:
    typed = block("deployment.md", SECTION, "bash")
    addresses = [shlex.split(line)[-1] for line in typed]

    def crawlctl(words: list[str]) -> subprocess.CompletedProcess[str]:
        place = f"127.0.0.1:{installed.port}"
        asked = [word.replace("DATABASE-HOST:3306", place) for word in words]
        return in_process.crawlctl(*asked, env=os.environ, folder=tmp_path)

    upgraded = crawlctl(shlex.split(typed[0])[1:])
    assert upgraded.returncode == 0, upgraded.stderr
    for grant in grants("services"):
        installed.execute(here(grant))
    for words in (shlex.split(typed[1])[1:], ["db", "upgrade", "--url", addresses[1]]):
        done = crawlctl(words)
        assert done.returncode == 0, (words, done.stderr)
    password = re.findall(r"services:([^@]+)@", addresses[1])[0]
    services = pymysql.connect(
        host="127.0.0.1",
        port=installed.port,
        user="services",
        password=password,
        database="lifecycle",
    )
    with (
        services,
        services.cursor() as cursor,
        pytest.raises(pymysql.err.MySQLError, match="denied"),
    ):
        cursor.execute("CREATE TABLE mine (id INT)")

"""``crawlctl db`` describes every state of a database in words, and changes nothing that it should
not.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.store.migrations.schema_version import head_version
from tests.support import in_process

pytestmark = pytest.mark.processes


def db(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``crawlctl db …`` on this database."""
    return in_process.crawlctl(
        "db", *words, env={**os.environ, "LIFECYCLE_DATABASE__URL": url}, folder=Path()
    )


def test_an_empty_database_becomes_current_and_stays_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'runs.db'}"
    assert "empty ->" in db(url, "upgrade").stderr
    assert "already" in db(url, "upgrade").stderr
    assert db(url, "check").returncode == 0
    assert db(url, "current").stdout.strip() == head_version()
    assert json.loads(db(url, "current", "-o", "json").stdout) == {
        "schema": head_version(),
        "needed": head_version(),
    }


@pytest.mark.parametrize(
    ("works_from", "code", "said"),
    [
        ("9998", 4, "newer version made it"),
        # A deployment that was rolled back finds the schema of the newer version.
        (None, 0, f"9999, which is newer than this build's {head_version()} and works with it"),
    ],
)
def test_a_newer_database_is_left_alone(
    tmp_path: Path, works_from: str | None, code: int, said: str
) -> None:
    file = tmp_path / "runs.db"
    url = f"sqlite:///{file}"
    db(url, "upgrade")
    with closing(sqlite_files.connect(file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute(
            "UPDATE schema_compatibility SET works_from = coalesce(?, works_from)", (works_from,)
        )
    for verb in ("check", "upgrade"):
        done = db(url, verb)
        assert (done.returncode, said in done.stderr, "9999" in done.stderr) == (
            code,
            True,
            True,
        ), done.stderr
        assert "Traceback" not in done.stderr
    assert db(url, "current").stdout.strip() == "9999"


@pytest.mark.parametrize(("url", "code", "words"), [
    ("mysql://x", 2, "LIFECYCLE_DATABASE__URL"),
    ("mysql+pymysql://ann:secret@127.0.0.1:1/runs", 8, "cannot be used"),
])  # fmt: skip
def test_a_database_that_cannot_be_used_is_named(url: str, code: int, words: str) -> None:
    done = db(url, "check")
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_of_an_older_build_is_named_and_created_anew_on_demand_alone(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    db(url, "upgrade")
    refused = db(url, "upgrade", "--recreate")
    assert (refused.returncode, "--recreate would delete all records" in refused.stderr) == (
        4,
        True,
    ), refused.stderr
    with closing(sqlite_files.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("DROP TABLE graph")
    for verb in ("check", "upgrade"):
        done = db(url, verb)
        assert (done.returncode, "but lacks table graph;" in done.stderr) == (4, True), done.stderr
    assert "recreated" in db(url, "upgrade", "--recreate").stderr
    assert db(url, "check").returncode == 0

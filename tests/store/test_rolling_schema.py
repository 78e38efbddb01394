"""A newer build changes the schema while this one works: it continues if the database allows it, or
says why not.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable
from crawler_lifecycle.domain.run import RunRequest, RunStatus, Verdict
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.diagnosis import diagnose
from crawler_lifecycle.store.engine import open_engine, parse_url
from crawler_lifecycle.store.migrations import schema_version as schema
from crawler_lifecycle.store.migrations.schema_version import head_version, read_schema, upgrade
from crawler_lifecycle.store.store import open_store
from tests.support.future_schema import MIGRATIONS, upgrade_by_a_newer_build
from tests.support.servers import EXPLAINED

ROOT = Path(__file__).parents[2]
VERSIONS = MIGRATIONS / "versions"

Newer = Callable[[str], None]

#: For what the rows with versions decide, with the same statements on both servers.
FEWER_ON_MYSQL = pytest.mark.parametrize("empty_url", EXPLAINED, indirect=True)


@pytest.fixture
def newer_build(empty_url: str) -> Newer:
    """Do what ``crawlctl db upgrade`` of a build does that knows schema 0999, and record which
    builds that still serves.
    """
    return functools.partial(upgrade_by_a_newer_build, empty_url)


def works_from(url: str) -> str | None:
    engine = open_engine(parse_url(url), pool_size=1)
    with engine.connect() as connection:
        found: str | None = connection.scalar(
            sa.text("SELECT works_from FROM schema_compatibility WHERE id = 1")
        )
    engine.dispose()
    return found


def test_this_build_goes_on_where_a_newer_schema_allows_it(
    current_url: str, newer_build: Newer
) -> None:
    store = open_store(current_url)
    store.health.ping()
    newer_build("0001")
    store.health.ping()  # the earlier process, with its open connections
    run = store.initiation.create_run(
        RunRequest(crawler="books"), "r1", Owner("crawl/books/r1", "chain")
    )
    fence = Fence(run.run_id, 1, "chain", run.run_uid)
    store.deployment.refuse_queued(fence, "no such image")
    store.completion.end_run(
        fence, lambda groups, stop: Verdict(RunStatus.FAILED, "failed", "no such image")
    )
    assert [row.status for row in store.runs.list_runs(limit=5)] == [RunStatus.FAILED]
    store.close()
    found = read_schema(current_url)
    assert (found.version, found.works_from, found.problem) == ("0999", "0001", None)
    assert (
        str(found) == f"0999, which is newer than this build's {head_version()} and works with it"
    )
    assert diagnose(current_url).schema == found


@FEWER_ON_MYSQL
def test_an_upgrade_by_the_older_build_changes_nothing(
    current_url: str, newer_build: Newer
) -> None:
    """A deployment that was rolled back runs its upgrade first, as every deployment does."""
    newer_build("0001")
    upgrade(current_url)
    assert (read_schema(current_url).version, works_from(current_url)) == ("0999", "0001")


@FEWER_ON_MYSQL
def test_a_build_that_is_too_old_refuses_with_the_fix(current_url: str, newer_build: Newer) -> None:
    newer_build("0999")
    store = open_store(current_url)
    words = rf"0999.*this build \(schema {head_version()}\).*schema 0999 or later.*newer version made it; run that"
    with pytest.raises(StoreUnavailable, match=words):
        store.health.ping()
    store.close()
    with pytest.raises(NotInThisState, match=words):
        upgrade(current_url)
    assert (read_schema(current_url).version, works_from(current_url)) == ("0999", "0999")


@FEWER_ON_MYSQL
def test_a_later_migration_that_only_adds_keeps_what_a_stricter_one_said(empty_url: str) -> None:
    upgrade_by_a_newer_build(empty_url, "0001", before="0998")
    assert works_from(empty_url) == "0998", "0998 serves no older build, so nothing after it does"


@FEWER_ON_MYSQL
@pytest.mark.parametrize(
    "row", ["DELETE FROM schema_compatibility", "DROP TABLE schema_compatibility"]
)
def test_a_newer_schema_that_does_not_tell_is_refused(
    current_url: str, newer_build: Newer, row: str
) -> None:
    newer_build("0001")
    engine = open_engine(parse_url(current_url), pool_size=1)
    with engine.begin() as connection:
        connection.execute(sa.text(row))
    engine.dispose()
    problem = read_schema(current_url).problem
    assert problem is not None
    assert re.search(r"0999.*newer version made it", problem)
    assert "build with schema" not in problem


def test_every_migration_says_which_builds_it_serves() -> None:
    files = sorted(VERSIONS.glob("0*.py"))
    assert files
    for file in files:
        told = re.search(r'^WORKS_FROM = "(\d+)"$', file.read_text(), re.MULTILINE)
        assert told is not None, (
            f"{file.name}: WORKS_FROM is missing; say which older builds still work on it"
        )
        assert told[1] in schema.known_versions()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_contract_of_the_store_holds_on_the_newer_schema() -> None:
    """This build, one deployment later: every test of the store once more, on every database."""
    words = ["-q", "-p", "tests.support.future_schema", "-p", "no:cacheprovider", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *words, "tests/contracts/store"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=3500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"[1-9]\d\d+ passed", done.stdout), done.stdout[-300:]

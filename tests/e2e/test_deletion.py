"""A deletion on a complete stack: a planted word is found nowhere afterwards, although the worker
is killed meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import signal
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from temporalio.client import Client

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.problems import CommandFailed
from tests.e2e.harness import Harness, until

WORD = "planted-canary-of-the-deletion"
CRAWLER = f"""
import json, os, pathlib, sys
print("{WORD}")
print("{WORD}", file=sys.stderr)
pathlib.Path(os.environ["CRAWL_FILES_DIR"], "items.jsonl").write_text(json.dumps({{"text": "{WORD}"}}) + "\\n")
pathlib.Path(os.environ["CRAWL_STATE_DIR"], "queue").write_text("{WORD}")
told = {{"pages": 1, "items": 1, "errors": 0, "bytes": 1, "finish_reason": "{WORD}"}}
pathlib.Path(os.environ["CRAWL_STATS_FILE"]).write_text(json.dumps(told))
sys.exit(1)
"""
pytestmark = pytest.mark.slow
#: Delivered events are with their receiver; services write their own logs
#: (docs/operations-database.md).
DELIVERED = {"events.jsonl", "logs/worker.log"}


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Harness]:
    (tmp_path / "canary.py").write_text(CRAWLER)
    crawlers = tmp_path / "crawlers.yaml"
    named = "- name: canary\n  kind: command\n  project: .\n  command: [python, canary.py]\n"
    crawlers.write_text(f"{named}  args: {{q: {{default: x}}}}\n  resumable: true\n")
    harness = Harness(tmp_path / "state", crawlers=crawlers)
    try:
        harness.start()
        harness.healthy()
        yield harness
    finally:
        harness.end()


def in_tables(harness: Harness) -> set[str]:
    found = set()
    with closing(sqlite_files.connect(harness.places.path("database"))) as database:
        names = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for name in names:
            if any(
                WORD in shown(cell)
                for row in database.execute(f"SELECT * FROM {name}")
                for cell in row
            ):
                found.add(name)
    return found


def shown(cell: object) -> str:
    """Return its text; logs are compressed like in MySQL: after four bytes with their length."""
    with suppress(zlib.error):
        return str(zlib.decompress(cell[4:])) if isinstance(cell, bytes) else str(cell)
    return str(cell)


def in_files(harness: Harness) -> set[str]:
    """Search files below the stack's folder, except those of Temporal's database, which frees space
    gradually.
    """
    files = (
        path
        for path in harness.folder.rglob("*")
        if path.is_file() and not path.name.startswith("temporal.db")
    )
    return {
        str(path.relative_to(harness.folder))
        for path in files
        if WORD.encode() in path.read_bytes()
    }


def zips(harness: Harness) -> list[str]:
    """Return the first part of the path of each archive, because archives are compressed."""
    return [
        str(path.relative_to(harness.folder)).split("/")[0]
        for path in harness.folder.rglob("*.zip")
    ]


def in_histories(harness: Harness) -> list[str]:
    async def search() -> list[str]:
        client = await Client.connect(
            str(harness.stack.addresses["temporal"]).removeprefix("http://")
        )
        found = []
        async for one in client.list_workflows(""):
            history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
            if any(WORD.encode() in event.SerializeToString() for event in history.events):
                found.append(one.id)
        return found

    return asyncio.run(search())


def test_a_planted_word_is_found_nowhere(planted: Harness) -> None:
    harness = planted
    ask = {"crawler": "canary", "args": {"q": WORD}, "tags": [WORD]}
    run = harness.gateway.start(ask, "r1")["run_id"]
    until(lambda: harness.gateway.run(run)["status"] == "FAILED", "its end")
    until(lambda: harness.closed([run]), "its archive")
    assert in_tables(harness) >= {
        "run_history",
        "task_history",
        "task_log",
        "run_tag",
        "outbox_event",
    }
    assert in_histories(harness)
    assert {"cluster", "archive"} <= {name.split("/")[0] for name in in_files(harness)} | set(
        zips(harness)
    )
    done = harness.crawlctl("delete", str(run), "--yes", "--by", "ada")
    assert done.returncode == 0, done.stderr
    harness.stack.supervisor.kill("worker", signal.SIGKILL)
    report = until(
        lambda: (told := harness.gateway.run(run)["deleted"])["ended_at"] and told,
        "the end of the deletion",
    )
    assert in_tables(harness) == set()
    assert in_histories(harness) == []
    assert (in_files(harness), zips(harness)) == (DELIVERED, [])
    assert (report["left"], report["requested_by"]) == ({}, "ada")
    assert list(report["gone"]).index("archives") < list(report["gone"]).index(
        "Temporal histories"
    ), "files went first"
    said = harness.crawlctl("describe", str(run))
    assert "by ada, done" in said.stdout
    assert WORD not in json.dumps(harness.gateway.run(run)) + said.stdout
    with pytest.raises(CommandFailed, match="run_deleted"):
        harness.gateway.resume(run)
    audit = harness.crawlctl("audit")
    assert "the database, the cluster and Temporal agree" in audit.stdout + audit.stderr

"""The database was restored from an older copy while runs executed: the whole story, on the local
cluster and with S3.
"""

from __future__ import annotations

import io
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from crawler_lifecycle import sqlite_files
from tests.e2e.harness import AUDITS, QUICK, Harness, until
from tests.e2e.test_audit_real import audit, crawlctl, crawlers_of
from tests.support.s3 import Bucket, rclone_s3, use_aws

pytestmark = pytest.mark.slow

#: It needs nothing of the stack, which is down for a while.
SLEEP = "import json, os, time; time.sleep(float(json.loads(os.environ['CRAWL_ARGS'])['seconds']))"


def catalogue(folder: Path) -> Path:
    file = folder / "crawlers.yaml"
    crawler = {"name": "sleeper", "kind": "command", "command": [sys.executable, "-c", SLEEP]}
    file.write_text(yaml.safe_dump([crawler | {"args": {"seconds": {"required": True}}}]))
    return file


def started(harness: Harness, seconds: float, tasks: int = 1) -> int:
    request = {
        "crawler": "sleeper",
        "tasks": [{"args": {"seconds": f"{seconds:g}"}}] * tasks,
        **QUICK,
    }
    return int(harness.gateway.start(request, f"restore-{time.monotonic_ns()}")["run_id"])


def copied(source: Path, target: Path) -> None:
    with sqlite_files.connect(source) as live, sqlite_files.connect(target) as copy:
        live.backup(copy)
    live.close()
    copy.close()


def put_back(copy: Path, database: Path) -> None:
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    copied(copy, database)


def uid(harness: Harness, run_id: int) -> str:
    return str(harness.query("SELECT run_uid FROM run_history WHERE run_id = ?", run_id)[0][0])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with rclone_s3() as server:
        use_aws(monkeypatch, server.url)
        yield server.bucket()


def stored(harness: Harness, run_id: int, bucket: Bucket) -> zipfile.ZipFile:
    """Read the archive of a run without using the product."""
    [export] = until(lambda: harness.gateway.run(run_id)["exports"], "its archive")
    place = urlsplit(str(export["url"]))
    if place.scheme == "s3":
        assert place.netloc == bucket.name
        return zipfile.ZipFile(io.BytesIO(bucket.read(place.path.lstrip("/"))))
    return zipfile.ZipFile(unquote(place.path))


@pytest.mark.parametrize(("how", "archive"), [("older copy", "s3"), ("removed", "folder")])
def test_what_executes_is_taken_up_again_and_nothing_is_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, how: str, archive: str
) -> None:
    monkeypatch.setenv("LIFECYCLE_CLUSTER__SLOTS", "8")
    for name, value in AUDITS.items():
        monkeypatch.setenv(name, value)
    crawlers = catalogue(tmp_path)
    place = f"s3://{bucket.name}/kept" if archive == "s3" else None
    first = Harness(tmp_path / "state", crawlers=crawlers, archive=place)
    first.start()
    before = started(first, 0)
    until(lambda: first.closed([before]), "the end of the first run")
    database, copy = first.places.path("database"), tmp_path / "copy.db"
    copied(database, copy)
    long = started(first, 30)
    endless = started(first, 3600, tasks=2)
    until(
        lambda: first.tasks(long) == {"RUNNING": 1} and first.tasks(endless) == {"RUNNING": 2},
        "three that run",
    )
    lost = {run_id: uid(first, run_id) for run_id in (long, endless)}
    pids = {pid for run_id in lost for pid in crawlers_of(first, run_id)}
    first._open.close()
    first.stack.stop()
    if how == "removed":
        for file in tmp_path.glob("state/lifecycle.db*"):
            file.unlink()
    else:
        put_back(copy, database)

    harness = Harness(tmp_path / "state", crawlers=crawlers, archive=place)
    try:
        harness.start()
        new = started(harness, 0)
        assert new > endless, "its number was never given before"
        until(lambda: harness.closed([new]), "the end of the new run")
        assert harness.status(new) == "COMPLETED"
        report = audit(harness, code=1)
        unknown = {f["run_id"] for f in report["findings"] if f["kind"] in ("orphan", "no_row")}
        assert unknown == set(lost)
        assert not {"orphan", "no_row"} & report["repaired"].keys(), "nobody said so"
        assert set(crawlers_of(harness, endless)) <= pids, (
            "they execute as before, and no second time"
        )
        taken = crawlctl(harness, "audit", "--adopt", "-o", "json")
        assert taken.returncode == 0, taken.stdout + taken.stderr
        assert {run_id: uid(harness, run_id) for run_id in lost} == lost
        until(
            lambda: harness.tasks(endless) == {"RUNNING": 2},
            "two that run again by the record",
            150,
        )
        assert crawlctl(harness, "stop", str(endless)).returncode == 0
        until(lambda: harness.closed([long, endless]), "the ends of both", 120)
        assert (harness.status(long), harness.status(endless)) == ("COMPLETED", "FAILED")
        run = harness.gateway.run(long)
        assert (run["outcome"], run["attempt"]) == ("finished", 1)
        rows = harness.query("SELECT status, attempt FROM task_history WHERE run_id = ?", long)
        assert rows == [("SUCCEEDED", 1)], "executed once"
        assert (
            harness.query("SELECT kind FROM correction WHERE run_id IN (?, ?)", long, endless) == []
        )
        for run_id in (*lost, new):
            assert stored(harness, run_id, bucket).testzip() is None
        if archive == "s3":
            assert len(bucket.keys()) == 4, (
                "one each: nobody's archive lies in the place of another's"
            )
        assert audit(harness)["left"] == 0
    finally:
        harness.end()

"""Pages of the database of ``crawlctl dev`` are overwritten while a crawl executes: the damage is
reported, a copy restored, and the crawl adopted.
"""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime

import yaml

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.settings import sqlite_url
from tests.dev.dev_support import ANSWER_S, Dev, wait_until


def refused(dev: Dev) -> str:
    """Return the output of a start that fails."""
    before = len(dev.error_output())
    dev.launch()
    assert dev.process is not None
    assert dev.process.wait(ANSWER_S) == 4
    return dev.error_output()[before:]


def test_a_damaged_database_is_put_back_and_a_crawl_goes_on(dev: Dev) -> None:
    folder, file = dev.state_dir.parent, dev.state_dir / "lifecycle.db"
    waits = f"while [ ! -e {folder}/done ]; do sleep 0.2; done"
    crawlers = [{"name": "long", "kind": "command", "command": ["sh", "-c", waits]}]
    (folder / "crawlers.yaml").write_text(yaml.safe_dump(crawlers))
    dev.options = ("--ports", "free")
    dev.start()
    copy, url = dev.state_dir / "copies" / "lifecycle-2026-01-02.db", sqlite_url(file)
    copy.parent.mkdir()
    dev.crawlctl("db", "backup", str(copy), "--url", url)
    run_id = int(dev.crawlctl("start", "long", "--poll-minutes", "0.02", "-o", "name").stdout)
    wait_until(lambda: "RUNNING" in dev.crawlctl("tasks", str(run_id)).stdout)
    busy = dev.crawlctl("db", "restore", str(copy), "--url", url, check=False)
    assert (busy.returncode, "is in use" in busy.stderr) == (4, True)
    dev.end()
    today = copy.with_name(f"lifecycle-{datetime.now(UTC):%Y-%m-%d}.db")
    today.write_bytes(b"damaged too" * 1000)
    with file.open("r+b") as raw:
        raw.seek(20 * 4096)
        raw.write(os.urandom(40 * 4096))

    said = refused(dev)
    assert f"{file} is damaged: " in said
    assert f"its newest intact copy is {copy}" in said
    assert f"next: crawlctl db restore {copy} --url {url}; then crawlctl dev" in said
    assert "LIFECYCLE_DATABASE__URL" not in said
    assert "Traceback" not in said
    today.unlink()
    put_back = dev.crawlctl("db", "restore", str(copy), "--url", url)
    assert "next: crawlctl dev" in put_back.stderr

    before = len(dev.error_output())
    dev.start()
    wait_until(lambda: "found 1, repaired 1, left 0" in dev.error_output()[before:])
    assert f"the database was restored from {copy}" in dev.error_output()[before:]
    assert not file.with_name("lifecycle.db.restored").exists()
    (folder / "done").touch()
    assert dev.crawlctl("wait", str(run_id)).returncode == 0
    with closing(sqlite_files.connect(file, "ro")) as database:
        runs = database.execute("SELECT run_id, status, outcome FROM run_history").fetchall()
        tasks = database.execute("SELECT status, attempt FROM task_history").fetchall()
    assert (runs, tasks) == ([(run_id, "COMPLETED", "finished")], [("SUCCEEDED", 1)]), (
        "executed once"
    )

"""Files with contents that we did not write, and folders that cannot be read."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.folders import folder as files
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Observation, Phase
from crawler_lifecycle.runner.safe_directory import SafeDirectory
from tests.clusters.local.local_fixture import POLITE, RUN, SLEEP, STUBBORN, Fixture, wait_until
from tests.support.run_refs import run_ref


def bounded(seen: Observation) -> None:
    """Check that every column accepts what was read, and the sum over all tasks of a run accepts
    every counter.
    """
    told = {**asdict(seen), **asdict(seen.counters), **(asdict(seen.end) if seen.end else {})}
    for name, value in told.items():
        if name in ("pages", "items", "errors", "bytes", "peak_memory"):
            assert value is None or 0 <= value <= bounds.COUNT_MAX, name
        elif name in ("exit_code", "signal"):
            assert value is None or abs(value) < 2**31, name
        elif isinstance(value, datetime):
            assert bounds.FIRST_YEAR <= value.year <= bounds.LAST_YEAR, name
        elif isinstance(value, str):
            assert "\0" not in value.encode().decode(), name


def test_an_end_at_the_ends_of_numbers_and_of_the_calendar_is_an_end(fixture: Fixture) -> None:
    fixture.deploy("pass")
    fixture.until_on_file()
    names = ("exit", "exit_code", "signal", "pages", "items", "errors", "bytes", "peak_memory")
    words = {"message": "\ud800\0", "finish_reason": "x" * 9000}
    moments = ("9999-12-31T23:59:59-14:00", "2101-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00")
    for number in (2**31, 2**63 - 1, 2**63, 10**400, bounds.COUNT_MAX + 1, -1):
        for moment in moments:
            odd = {**dict.fromkeys(names, number), **words, "finished_at": moment}
            for name in ("end.json", "summary.json", "stats.json"):
                (fixture.folder() / name).write_text(json.dumps(odd))
            seen = fixture.poll()
            assert (seen.phase, seen.end is not None) == (Phase.ENDED, True)
            assert "out of range" in ((seen.end and seen.end.message) or "")
            bounded(seen)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b'{"exit_code": "0"}', b"x" * 300_000, b"\xff\xfe"]
)
def test_a_garbled_end_is_an_end_that_names_its_trouble(fixture: Fixture, content: bytes) -> None:
    fixture.deploy("pass")
    fixture.until_on_file()
    (fixture.folder() / "summary.json").unlink()
    (fixture.folder() / "end.json").write_bytes(content)
    seen = fixture.poll()
    assert seen.phase is Phase.ENDED
    assert seen.end.exit_code is None
    assert "ignored: end.json" in (seen.end.message or "")


@pytest.mark.parametrize(
    "name", ["spec.json", "supervisor.json", "process.json", "stats.json", "waiting.json"]
)
def test_garbage_under_a_running_crawler_hides_nothing(fixture: Fixture, name: str) -> None:
    fixture.start(STUBBORN)
    good = (fixture.folder() / name).read_bytes() if (fixture.folder() / name).exists() else None
    (fixture.folder() / name).write_bytes(b"{ not json")
    seen = fixture.poll()
    assert seen.phase is Phase.EXECUTING
    if name != "waiting.json":  # which is no longer needed
        assert f"ignored: {name} is not JSON" in (seen.reason or "")
    if name == "process.json":
        fixture.slay(fixture.supervisor())
        assert fixture.poll().phase is Phase.EXECUTING  # found by its environment
        fixture.cluster.kill(run_ref(RUN), fixture.ref())
        assert fixture.poll().phase is Phase.ENDED
    elif good is not None:
        (fixture.folder() / name).write_bytes(good)


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_garbage(tmp_path: Path, kind: str) -> None:
    path, folder = tmp_path / "end.json", SafeDirectory(str(tmp_path))
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    with pytest.raises(files.Garbage):
        files.read(folder, "end.json")


def test_a_missing_folder_of_tasks_is_an_outage_for_everybody(fixture: Fixture) -> None:
    """As when its disk is not mounted: nothing is concluded, and nothing is created in its place."""
    fixture.start(POLITE)
    tasks, away = fixture.state / "tasks", fixture.state / "tasks.away"
    tasks.rename(away)
    again = LocalCluster(fixture.state, 2)
    for call in (
        lambda: again.poll(run_ref(RUN), [fixture.ref()]),
        lambda: again.stop(run_ref(RUN), fixture.ref()),
        lambda: LocalFiles(fixture.state).files(run_ref(RUN), [fixture.ref()]),
        lambda: fixture.deploy(SLEEP, range(1, 2)),
    ):
        with pytest.raises(ClusterUnavailable, match="tasks"):
            call()
    assert not tasks.exists()
    away.rename(tasks)
    assert fixture.poll().phase is Phase.EXECUTING
    again.stop(run_ref(RUN), fixture.ref())
    fixture.until(Phase.ENDED)
    assert fixture.signals() == 1


def test_an_end_while_the_folder_of_tasks_is_missing_is_written_when_it_is_back(
    fixture: Fixture,
) -> None:
    go = fixture.state / "go"
    # Only when it reports so: a forked crawler that has not executed yet still needs the folder.
    fixture.start(f"""
import os, time
open(os.environ["CRAWL_FILES_DIR"] + "/ready", "w").close()
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
""")
    runner = fixture.runner()
    tasks, away = fixture.state / "tasks", fixture.state / "tasks.away"
    tasks.rename(away)
    go.touch()
    wait_until(lambda: not runner.alive())
    time.sleep(0.3)
    away.rename(tasks)
    seen = fixture.until(Phase.ENDED)
    assert seen.end.exit_code == 0


def test_a_file_in_the_place_of_all_tasks_is_an_outage(fixture: Fixture) -> None:
    tasks = fixture.state / "tasks"
    tasks.rmdir()
    tasks.touch()
    with pytest.raises(ClusterUnavailable):
        fixture.poll()
    tasks.unlink()


@pytest.mark.parametrize("name", ["end.json", "supervisor.json", "process.json", "spec.json"])
def test_a_file_that_cannot_be_read_is_an_outage(
    fixture: Fixture, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.fill(1)
    real: Any = os.open

    def failing(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied", str(path))
        return int(real(path, *rest, **more))

    if name == "end.json":
        fixture.cluster.kill(run_ref(RUN), fixture.ref())
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        with pytest.raises(ClusterUnavailable):
            fixture.poll()
    assert fixture.poll().phase in (Phase.EXECUTING, Phase.ENDED)


def test_the_log_tail_is_short_and_readable(fixture: Fixture) -> None:
    fixture.deploy(
        "import sys; sys.stdout.buffer.write(b'\\xff\\x00' + 'é'.encode() * 20000 + b'end')"
    )
    fixture.until(Phase.ENDED)
    [details] = fixture.cluster.details(run_ref(RUN), [fixture.ref()])
    assert len(details.log_tail.encode()) <= LOG_TAIL_BYTES
    assert "\0" not in details.log_tail
    assert details.log_tail.rstrip().endswith("}")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_a_crawler_put_in_the_place_of_its_log_is_not_read(
    fixture: Fixture, tmp_path: Path, kind: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    fixture.deploy("pass")
    fixture.until_on_file()
    log = fixture.folder() / "log"
    log.unlink()
    if kind == "link":
        log.symlink_to(secret)
    else:
        os.mkfifo(log)
    [details] = fixture.cluster.details(run_ref(RUN), [fixture.ref()])
    assert details.log_tail is None

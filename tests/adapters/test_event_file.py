"""The event file contains only whole lines, even if another writer appends to it or dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.event_file import JsonLinesSink
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.ports.runs import Event

UID = "0123456789abcdef" * 2
AT = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)


def _event(run_id: int = 7, **body: object) -> Event:
    return Event(3, run_id, UID, 2, "run.ended", {"status": "FAILED", **body}, AT, f"runs/{run_id}")


def _lines(path: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for line in path.read_text().splitlines()
        if line.startswith("{") and line.endswith("}")
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my events é.jsonl"


def test_a_line_is_a_cloud_event(path: Path) -> None:
    JsonLinesSink(path.as_uri()).send(_event())
    [line] = _lines(path)
    assert line == {
        "specversion": "1.0",
        "id": f"7-{UID}/2/run.ended",
        "source": "crawler-lifecycle",
        "type": "run.ended",
        "time": "2026-11-20T12:00:00.123456+00:00",
        "subject": "runs/7",
        "sequence": "0000000000000000003",
        "datacontenttype": "application/json",
        "data": {"status": "FAILED"},
    }


def test_texts_never_break_a_line(path: Path) -> None:
    JsonLinesSink(path.as_uri()).send(_event(cause="a\nb\u2028c\x00\ud800é"))
    assert path.read_bytes().count(b"\n") == 1
    assert _lines(path)[0]["data"]["cause"] == "a\nb\u2028c\x00\ufffdé"  # type: ignore[index]


def test_a_torn_line_costs_nobody_but_itself(path: Path) -> None:
    sink = JsonLinesSink(path.as_uri())
    sink.send(_event(1))
    with path.open("ab") as file:
        file.write(b'{"id": "2/1/run.en')  # a writer that was killed here
    sink.send(_event(3))
    assert [line["id"] for line in _lines(path)] == [f"1-{UID}/2/run.ended", f"3-{UID}/2/run.ended"]
    assert len(path.read_text().splitlines()) == 3


def test_many_writers_lose_and_mix_nothing(path: Path) -> None:
    code = (
        "import sys; from datetime import datetime, UTC\n"
        "from crawler_lifecycle.adapters.event_file import JsonLinesSink\n"
        "from crawler_lifecycle.ports.runs import Event\n"
        "for n in range(50): JsonLinesSink(sys.argv[1], lock_timeout_s=120).send("
        "Event(n, n + int(sys.argv[2]), 'u' * 32, 1, 'run.ended', {'x': 'y' * 5000}, datetime.now(UTC), "
        "f'runs/{n + int(sys.argv[2])}'))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, path.as_uri(), str(k * 1000)])
        for k in range(3)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda n: JsonLinesSink(path.as_uri(), lock_timeout_s=120).send(_event(n + 9000)),
                range(50),
            )
        )
    assert [process.wait(150) for process in processes] == [0, 0, 0]
    ids = [str(line["id"]) for line in _lines(path)]
    assert len(ids) == len(set(ids)) == 200 == len(path.read_text().splitlines())


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonLinesSink(path.as_uri())
    sink.send(_event(1))
    before, write = path.read_bytes(), os.write

    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
    with pytest.raises(NotDelivered):
        sink.send(_event(2))
    assert path.read_bytes() == before
    monkeypatch.setattr(os, "write", write)

    def no_space(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(NotDelivered, match="No space left"):
        sink.send(_event(2))
    assert path.read_bytes() == before


@pytest.mark.parametrize("remade", [False, True])
def test_a_file_that_is_moved_while_a_writer_waits_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, remade: bool
) -> None:
    """The collector of events moves it. Later events belong in the next file, where the collector
    will look for them.
    """
    sink, lock, moved = (
        JsonLinesSink(path.as_uri()),
        JsonLinesSink._lock,
        path.with_name("collected.jsonl"),
    )
    sink.send(_event(1))

    def waits(self: JsonLinesSink, fd: int) -> None:
        lock(self, fd)
        if not moved.exists():
            path.rename(moved)
            if remade:
                path.touch()

    monkeypatch.setattr(JsonLinesSink, "_lock", waits)
    sink.send(_event(2))
    assert [line["id"] for line in _lines(moved)] == [f"1-{UID}/2/run.ended"]
    assert [line["id"] for line in _lines(path)] == [f"2-{UID}/2/run.ended"]


def test_a_stuck_writer_delays_and_does_not_hang(path: Path) -> None:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NotDelivered, match="another writer holds its lock"):
            JsonLinesSink(path.as_uri(), lock_timeout_s=0.05).send(_event())
    JsonLinesSink(path.as_uri()).send(_event())


def test_places_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for name in ("fifo", "", "file/below"):
        with pytest.raises(NotDelivered):
            JsonLinesSink((tmp_path / name).as_uri()).send(_event())


def test_a_check_needs_what_a_delivery_needs_and_adds_no_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    sink = JsonLinesSink(path.as_uri(), lock_timeout_s=0.05)
    assert str(path) in sink.check()
    assert path.read_bytes() == b""
    sink.send(_event())
    before = path.read_bytes()
    sink.check()
    assert path.read_bytes() == before
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NotDelivered, match="LIFECYCLE_EVENTS__URL"):
            sink.check()
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "", "deep/events.jsonl/below"):
        with pytest.raises(NotDelivered, match="events cannot be written"):
            JsonLinesSink((tmp_path / name).as_uri()).check()


@pytest.mark.parametrize(
    "url", ["events.jsonl", "file:events.jsonl", "file://host/x", "eventbridge://bus", ""]
)
def test_other_urls_are_refused_with_the_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_EVENTS__URL"):
        JsonLinesSink(url)

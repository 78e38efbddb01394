"""What every ``TaskLogs`` guarantees, even if a crawler has replaced its log."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes.files.logs import PodLogs
from crawler_lifecycle.clusters.local.folders.logs import LocalLogs
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef
from tests.contracts.logs.logs_harness import RUN, FakeHarness, Harness, LocalHarness, PodHarness
from tests.support.kube_api import Garbage
from tests.support.kube_objects import NO_LOGS
from tests.support.run_refs import run_ref


def test_nothing_is_known_about_a_task_that_did_not_begin(printing: Harness) -> None:
    assert printing.read(None) is None
    printing.write(b"x")
    assert printing.read(None, index=1) is None
    assert printing.read(None, attempt=2) is None


def test_the_end_of_a_log_and_what_follows_it(printing: Harness) -> None:
    printing.write(b"one\ntwo\n")
    assert printing.read(None, 4) == LogPart(b"two\n", 8, False)
    assert printing.read(8) == LogPart(b"", 8, False)
    printing.write(b"three\n")
    assert printing.read(8) == LogPart(b"three\n", 14, False)
    assert printing.read(0, 5) == LogPart(b"one\nt", 5, False)


def test_the_end_comes_with_the_last_byte_and_not_before(printing: Harness) -> None:
    printing.write(b"0123456789")
    printing.end()
    assert printing.read(0, 4) == LogPart(b"0123", 4, False)
    assert printing.read(4, 6) == LogPart(b"456789", 10, True)
    assert printing.read(10) == LogPart(b"", 10, True)
    assert printing.read(None, 3) == LogPart(b"789", 10, True)


def test_a_task_that_ended_without_printing(printing: Harness) -> None:
    printing.end()
    assert printing.read(None) == LogPart(b"", 0, True) == printing.read(5)


def test_a_log_that_was_cut_begins_anew(printing: Harness) -> None:
    printing.write(b"0123456789")
    printing.cut()
    printing.write(b"new")
    assert printing.read(10) == LogPart(b"new", 3, False)


@given(steps=st.lists(st.one_of(st.binary(min_size=1, max_size=30), st.just("move")), max_size=30))
def test_a_local_log_that_was_moved_is_read_with_its_present_part(
    steps: list[bytes | str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whoever follows the log gets each byte once, and whoever reads it again gets both parts."""
    harness = LocalHarness(tmp_path_factory.mktemp("log"))
    harness.write(b"")
    parts = [b"", b""]
    written = followed = b""
    position = 0
    for step in steps:
        if isinstance(step, bytes):
            harness.write(step)
            parts[-1] += step
            written += step
        else:
            (harness.folder / "log").rename(harness.folder / "log.1")
            harness.write(b"")
            parts = [parts[-1], b""]
        found = harness.read(position)
        assert found is not None
        followed += found.data
        position = found.next
        assert followed == written
        both = b"".join(parts)
        assert harness.read(0) == LogPart(both, len(both), False)
        assert harness.read(None, 7) == LogPart(both[-7:], len(both), False)
    harness.end()
    ended = harness.read(0)
    assert ended is not None
    assert ended.ended


def _new(kind: str, folder: Path) -> Harness:
    if kind == "kubernetes":
        return PodHarness(folder)
    return FakeHarness() if kind == "fake" else LocalHarness(folder)


@pytest.mark.timeout(900)  # a hundred servers, or three hundred
@pytest.mark.parametrize("kind", ["fake", "local", "kubernetes"])
@given(
    steps=st.lists(st.one_of(st.binary(min_size=1, max_size=30), st.integers(1, 12)), max_size=30)
)
def test_reading_on_and_on_gives_every_byte_once(
    kind: str, steps: list[bytes | int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    harness = _new(kind, tmp_path_factory.mktemp("logs"))
    try:
        _read_on_and_on(harness, steps)
    finally:
        harness.close()


def _read_on_and_on(harness: Harness, steps: list[bytes | int]) -> None:
    written, seen, place = b"", b"", 0
    for step in steps:
        if isinstance(step, bytes):
            harness.write(step)
            written += step
        elif (part := harness.read(place, step)) is not None:
            assert len(part.data) <= step
            seen, place = seen + part.data, part.next
    harness.end()
    while (part := harness.read(place, 7)) is not None:
        seen, place = seen + part.data, part.next
        if part.ended:
            break
    assert seen == written


# --- hostile folders ------------------------------------------------------------------------------


def _put(kind: str, path: Path, secret: Path) -> None:
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "folder", "socket"])
def test_only_a_regular_file_is_a_log(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = LocalHarness(tmp_path / "state")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    monkeypatch.chdir(harness.folder)  # paths of sockets must be short
    _put(kind, Path("log"), secret)
    answers: list[LogPart | None] = []
    reading = threading.Thread(target=lambda: answers.append(harness.read(None)), daemon=True)
    reading.start()
    reading.join(60)
    assert answers == [None], "it hangs, or it read something that is no log"


@pytest.mark.parametrize("level", ["0", "0/1", ""])
def test_no_folder_on_the_way_may_lead_elsewhere(tmp_path: Path, level: str) -> None:
    state = tmp_path / "state"
    elsewhere = LocalHarness(tmp_path / "elsewhere")
    elsewhere.write(b"of another cluster")
    run = state / "tasks" / str(run_ref(RUN))
    (run / level).parent.mkdir(parents=True)
    (run / level).symlink_to(tmp_path / "elsewhere" / "tasks" / str(run_ref(RUN)) / level)
    assert LocalLogs(state).read(run_ref(RUN), TaskRef(100, 0, 1), None, 100) is None


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    run = tmp_path / "state" / "tasks" / str(run_ref(RUN))
    run.mkdir(parents=True)
    (run / "0").write_text("x")
    assert LocalLogs(tmp_path / "state").read(run_ref(RUN), TaskRef(100, 0, 1), None, 100) is None


def test_what_cannot_be_read_is_an_outage_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = LocalHarness(tmp_path / "state")
    harness.write(b"x")

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(ClusterUnavailable, match="Input/output error"):
        harness.read(None)


def test_reading_creates_nothing(tmp_path: Path) -> None:
    assert LocalLogs(tmp_path / "missing").read(run_ref(RUN), TaskRef(1, 0, 1), None, 10) is None
    assert list(tmp_path.iterdir()) == []


# --- pods -----------------------------------------------------------------------------------------


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[PodHarness]:
    harness = PodHarness(tmp_path)
    yield harness
    harness.close()


def test_a_followed_log_is_not_read_from_its_beginning_each_time(harness: PodHarness) -> None:
    place = 0
    for number in range(40):
        harness.write(b"%04d %s\n" % (number, b"x" * 500))
        part = harness.read(place, 1000)
        assert part is not None
        place = part.next
    asked = [
        int(seen.query["limitBytes"])
        for seen in harness.server.requests
        if seen.path.endswith("/log")
    ]
    assert max(asked) < 12_000, "the log has 20,000 bytes by now"
    begun = [
        seen.query["sinceTime"] for seen in harness.server.requests if "sinceTime" in seen.query
    ]
    assert begun == sorted(begun)


def test_a_process_that_remembers_nothing_goes_on_at_the_place(harness: PodHarness) -> None:
    harness.write(b"".join(b"%04d\n" % number for number in range(100)))
    assert harness.read(250, 5) == LogPart(b"0050\n", 255, False)
    harness.logs = PodLogs(harness.api)
    assert harness.read(255, 5) == LogPart(b"0051\n", 260, False)


def test_a_log_that_was_rotated_while_it_was_followed(harness: PodHarness) -> None:
    """Lines of the remembered second are gone: reading continues where the new file begins."""
    harness._step = timedelta(seconds=0.1)
    for number in range(30):
        harness.write(b"%04d\n" % number)
    assert harness.read(100, 10) == LogPart(b"0020\n0021\n", 110, False)
    lines = harness.server.logs[harness.server.pod(harness.NAME)["metadata"]["uid"]]
    del lines[:23]
    assert harness.read(110, 10) == LogPart(b"0023\n0024\n", 10, False)


def test_a_node_that_does_not_answer_is_an_outage(harness: PodHarness) -> None:
    harness.write(b"x\n")
    harness.server.node_lost()
    with pytest.raises(ClusterUnavailable, match="no route to host"):
        harness.read(None)


def test_a_container_that_waits_has_not_begun(harness: PodHarness) -> None:
    harness._pod()
    harness.server.pod_waits(harness.NAME, "ImagePullBackOff")
    assert harness.read(None) is None


def test_a_missing_right_is_no_empty_log(harness: PodHarness) -> None:
    harness.write(b"x\n")
    harness.end()
    harness.server.deny("get", "pods/log")
    with pytest.raises(ClusterUnavailable, match="needs permission to get pods/log"):
        harness.read(None)


@pytest.mark.parametrize("words", NO_LOGS, ids=lambda words: words[:20].decode())
def test_a_log_that_the_node_does_not_find_is_not_what_it_says_of_it(
    harness: PodHarness, words: bytes
) -> None:
    """The node returns status 200 and a sentence."""
    harness.write(b"x\n")
    said = Garbage(words, "text/plain")
    harness.server.faults.add("GET", "/log", said, times=None)
    assert harness.read(None) is None
    harness.end()
    assert harness.read(None) == LogPart(b"", 0, True) == harness.read(2)
    harness.server.faults.clear()
    harness.write(words.strip() + b"\nis what the crawler says\n")
    printed = b"x\n" + words.strip() + b"\nis what the crawler says\n"
    assert harness.read(0) == LogPart(printed, len(printed), True)

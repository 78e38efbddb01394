"""User code reads files of runs: live, from archives in a folder or in S3, and while they
disappear.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.activities import run_files
from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.run_files import CHUNK, FileQuestions, FileReading, RunFiles
from crawler_lifecycle.activities.shared import answered
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.clusters.volume import VolumePlace
from crawler_lifecycle.domain.errors import (
    InvalidRequest,
    NotDelivered,
    NotYetDelivered,
    RunNotFound,
)
from crawler_lifecycle.domain.run_data import PIECE, AskedFiles, Items, RunFile, open_file
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.protocols import FileArchive
from crawler_lifecycle.ports.runs import Fence
from tests.contracts.store.harness import Clock, Harness, opened
from tests.support.s3 import moto_s3, use_aws

PARENT = "graph/nightly"
NOISE = random.Random(7).randbytes(3 * PIECE + 12345)
PRICES = b"".join(b'{"price": %d}\n' % n for n in range(200_000))


@dataclass
class Fixture(FileQuestions):
    """A run that has ended, its files, and its readers."""

    harness: Harness
    root: Path
    archive: FileArchive
    run: Fence
    live: bool
    reading: FileReading = None  # type: ignore[assignment]

    @property
    def files(self) -> Path:
        return self.root / "tasks" / f"{self.run.run_id}-{self.run.run_uid}" / "0" / "1" / "files"

    def export(self, status: str = "exported") -> None:
        """Deliver the archive, and remove the files unless they are read where they are."""
        store, result = self.harness.store.exports, None
        if status == "exported":
            result = self.archive.store(
                "7/1/x.zip", [FileSource("task-0", self.files)], {}, lambda *_: None
            )
        store.record_export(self.run, status, result, None)

    def renew(self, parent: str = PARENT) -> FileReading:
        store, live = self.harness.store, LocalFiles(self.root) if self.live else None
        files = RunFiles(store.tasks, store.exports, live, ArchivedFiles(self.archive), "elsewhere")
        self.reading = FileReading(store.runs, files, parent, self.harness.clock)
        return self.reading

    @property
    def source(self) -> AskedFiles:
        """Return the source of files that user code gets."""
        return AskedFiles(
            lambda name, **arguments: json.loads(json.dumps(answered(self, name, arguments)))
        )


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with moto_s3() as server:
        yield server


@pytest.fixture(params=["live", "folder", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fixture(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Fixture]:
    url = (tmp_path / "archive").as_uri()
    if place == "s3":
        server = request.getfixturevalue("moto")
        use_aws(monkeypatch, server.url)
        url = f"s3://{server.bucket().name}/x"
    clock = Clock()
    with opened(f"sqlite:///{tmp_path / 'state.db'}", clock=clock) as store:
        harness = Harness(store, clock)
        fixture = Fixture(
            harness, tmp_path, open_archive(url), harness.executing(parent=PARENT), place == "live"
        )
        fixture.files.mkdir(parents=True)
        (fixture.files / "items.jsonl").write_bytes(PRICES)
        (fixture.files / "noise.zip").write_bytes(
            NOISE
        )  # a name that is stored without compression
        (fixture.files / "empty.txt").touch()
        harness.finish(fixture.run)
        fixture.export()
        fixture.renew()
        yield fixture


def test_what_a_crawl_left_is_read_to_the_byte(fixture: Fixture) -> None:
    run_id, source = fixture.run.run_id, fixture.source
    sizes = {file.name: file.bytes for file in source.run_files(run_id)}
    assert sizes == {
        "task-0/items.jsonl": len(PRICES),
        "task-0/noise.zip": len(NOISE),
        "task-0/empty.txt": 0,
    }
    assert [item["price"] for item in Items(source, [run_id], offset=5, limit=3)] == [5, 6, 7]
    assert sum(item["price"] for item in Items(source, [run_id])) == sum(range(200_000))
    noise = open_file(source, [run_id], "task-0/noise.zip")
    assert noise.read() == NOISE
    assert noise.seek(-100, 2) == len(NOISE) - 100
    assert noise.read(50) == NOISE[-100:-50]
    assert open_file(source, [run_id], "task-0/empty.txt").read() == b""


def test_several_files_at_once_and_on_from_anywhere(fixture: Fixture) -> None:
    run_id, dice = fixture.run.run_id, random.Random(3)
    files = {"task-0/items.jsonl": PRICES, "task-0/noise.zip": NOISE}
    places = dict.fromkeys(files, 0)
    while files.keys() & places:
        name = dice.choice(list(places))
        if dice.random() < 0.1:
            fixture.renew()  # an error, or another worker
        piece = fixture.reading.read(run_id, name, places[name])
        assert len(piece) < PIECE + CHUNK, "an answer is bounded"
        assert piece == files[name][places[name] :][: len(piece)]
        places[name] += len(piece)
        if not piece:
            assert places.pop(name) == len(files[name])
    assert fixture.reading.read(run_id, "task-0/noise.zip", 10**12) == b""


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"offset": -1}, InvalidRequest, "offset: -1 is not allowed"),
    ({"offset": True}, InvalidRequest, "offset"),
    ({"offset": 10**30}, InvalidRequest, "offset"),
    ({"run_id": 10**30}, InvalidRequest, "run_id"),
    ({"run_id": "1 OR 1"}, InvalidRequest, "run_id"),
    ({"run_id": 404}, RunNotFound, "run 404"),
    ({"file": "task-0/../1/items.jsonl"}, NotDelivered, "no file"),
    ({"file": "task-0//etc/passwd"}, NotDelivered, "no file"),
    ({"file": "task-7/items.jsonl"}, NotDelivered, "no file"),
    ({"file": 7}, InvalidRequest, "read: "),
    ({"more": 1}, InvalidRequest, "read: "),
]


@pytest.mark.parametrize("place", ["live", "folder"], indirect=True)
def test_what_cannot_be_asked(fixture: Fixture) -> None:
    for wrong, error, text in BAD:
        asked = {"run_id": fixture.run.run_id, "file": "task-0/items.jsonl", "offset": 0} | wrong
        with pytest.raises(error, match=text):
            answered(fixture, "read", asked)


@pytest.mark.parametrize("place", ["live"], indirect=True)
def test_runs_of_others_are_refused(fixture: Fixture) -> None:
    file = RunFile(fixture.run.run_id, "task-0/items.jsonl", 0)
    for parent in ("graph/nightly2", "graph/night", "manager/x/", "graph/", "manager/"):
        fixture.renew(parent)
        with pytest.raises(InvalidRequest, match="did not begin run"):
            fixture.source.read_file(file, 0)
        with pytest.raises(InvalidRequest, match="did not begin run"):
            fixture.source.run_files(file.run_id)
    flow = RunFile(
        fixture.harness.executing("r2", parent="manager/x/monday").run_id, "task-0/items.jsonl", 0
    )
    for parent, error in {
        "manager/x/": NotDelivered,
        "manager/y/": InvalidRequest,
        "graph/": InvalidRequest,
    }.items():
        fixture.renew(parent)
        with pytest.raises(error):
            fixture.source.read_file(flow, 0)


@pytest.mark.parametrize("place", ["live"], indirect=True)
def test_nothing_of_a_deleted_run_is_read_on(fixture: Fixture) -> None:
    items = iter(Items(fixture.source, [fixture.run.run_id]))
    assert next(items) == {"price": 0}
    fixture.harness.store.deletion.ask_deletion(fixture.run.run_id, "ada")
    VolumePlace(fixture.root).remove(fixture.run.run, 1)
    with pytest.raises(NotDelivered):
        list(items)
    fixture.renew()
    for asked in ("files", "read"):
        more = {"file": "task-0/items.jsonl", "offset": 0} if asked == "read" else {}
        with pytest.raises(NotDelivered, match=rf"run {fixture.run.run_id} was deleted"):
            answered(fixture, asked, {"run_id": fixture.run.run_id} | more)


@pytest.mark.parametrize("place", ["live", "folder"], indirect=True)
def test_files_that_go_while_they_are_read(fixture: Fixture) -> None:
    """A file that was removed here is read from the archive; without an archive, the reader gets an
    error, not a shorter file.
    """
    source, file = fixture.source, RunFile(fixture.run.run_id, "task-0/items.jsonl", len(PRICES))
    items = iter(Items(source, [file.run_id]))
    assert next(items) == {"price": 0}
    shutil.rmtree(fixture.files.parent.parent.parent)
    if fixture.live:
        with pytest.raises(NotDelivered, match="was removed while it was being read"):
            list(items)
    else:
        shutil.rmtree(fixture.root / "archive")
        with pytest.raises(NotDelivered):
            list(items)
    fixture.renew()
    if fixture.live:
        assert len(list(Items(source, [file.run_id]))) == 200_000, "out of the archive"
    else:
        with pytest.raises(NotDelivered):
            source.run_files(file.run_id)


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_a_damaged_archive_is_told(fixture: Fixture) -> None:
    (file,) = (fixture.root / "archive").rglob("*.zip")
    whole = file.read_bytes()
    file.write_bytes(whole[:500] + bytes(100) + whole[600:])
    with pytest.raises(NotDelivered, match="cannot be read"):
        list(Items(fixture.source, [fixture.run.run_id]))


@pytest.mark.parametrize("place", ["folder"], indirect=True)
@pytest.mark.parametrize(("status", "hours", "expected"), [
    ("failed", 0, NotYetDelivered), ("failed", 25, NotDelivered), ("empty", 0, None), ("exported", 0, None),
])  # fmt: skip
def test_an_archive_on_its_way_is_waited_for(
    fixture: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    hours: int,
    expected: type[Exception] | None,
) -> None:
    """A reader waits once for all its files; a day after the end, it no longer waits."""
    polls: list[float] = []
    fixture.run = fixture.harness.executing("r2", parent=PARENT)
    fixture.files.mkdir(parents=True)
    (fixture.files / "items.jsonl").write_bytes(PRICES)
    fixture.harness.finish(fixture.run)
    fixture.export("failed")
    fixture.harness.clock.forward(3600 * hours)

    def sleep(seconds: float) -> None:
        polls.append(seconds)
        if len(polls) == 3 and expected is None:
            fixture.export(status)
        monkeypatch.setattr(run_files, "WAIT_S", -1.0 if len(polls) >= 5 else 30.0)
        fixture.reading._waits_until = None

    monkeypatch.setattr(time, "sleep", sleep)
    if expected is None:
        assert bool(fixture.source.run_files(fixture.run.run_id)) is (status == "exported")
        assert len(polls) == 3
        return
    for _ in range(2):
        with pytest.raises(NotDelivered) as told:
            fixture.source.run_files(fixture.run.run_id)
        assert type(told.value) is expected
    assert (fixture.reading.late, len(polls)) == (
        (True, 5) if expected is NotYetDelivered else (False, 0)
    )


@pytest.mark.parametrize("place", ["live"], indirect=True)
def test_what_is_more_than_can_be_read_is_refused_and_not_left_out(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "READ_S", -1.0)
    with pytest.raises(NotDelivered, match="takes too long to read"):
        fixture.reading.read(fixture.run.run_id, "task-0/items.jsonl", 0)
    monkeypatch.setattr(run_files, "ALL_FILES", 2)
    with pytest.raises(InvalidRequest, match="it has too many files to list; download its archive"):
        fixture.source.run_files(fixture.run.run_id)

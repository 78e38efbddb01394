"""The contracts of ``EventSink``, ``Notifier``, ``FileArchive``, ``Catalogue`` and ``WorkflowDirectory``."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from services_harness import CRAWLERS, event

from crawler_lifecycle.adapters.archive import FolderArchive
from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.adapters.events import JsonLinesSink, OutboxNotifier
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.fakes.services import FakeArchive, FakeCatalogue, FakeDirectory, FakeNotifier, FakeSink
from crawler_lifecycle.ports import Catalogue, EventSink, FileArchive, FileSource, Notifier, Owner

# --- sinks ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "fake"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[EventSink, Callable[[], list[Any]]]:
    if request.param == "fake":
        fake = FakeSink()
        return fake, lambda: [e.body["run_id"] for e in fake.sent]
    path = tmp_path / "deep" / "events.jsonl"
    real = JsonLinesSink(path.as_uri())
    return real, lambda: [json.loads(line)["data"]["run_id"] for line in path.read_text().splitlines()]


def test_events_arrive_in_order_and_a_repeat_is_delivered_again(
    sink: tuple[EventSink, Callable[[], list[Any]]],
) -> None:
    port, received = sink
    for number in (1, 2, 2):
        port.send(event(number))
    assert received() == [1, 2, 2]
    assert port.name


def test_an_event_that_cannot_be_written_is_not_delivered(sink: tuple[EventSink, Callable[[], list[Any]]]) -> None:
    port, received = sink
    port.send(event(1))
    for value in (object(), float("nan")):
        with pytest.raises(NotDelivered):
            port.send(event(2, bad=value))
    assert received() == [1]


@pytest.mark.parametrize("notifier", [OutboxNotifier(), FakeNotifier()], ids=["outbox", "fake"])
def test_a_notifier_takes_an_event_as_often_as_it_is_pushed(notifier: Notifier) -> None:
    for _ in range(2):
        notifier.push(event())
    assert notifier.name


# --- archives ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "fake"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> FileArchive:
    return FakeArchive() if request.param == "fake" else FolderArchive((tmp_path / "archive").as_uri())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_bytes(b"bbb")
    (folder / "sub" / "a.bin").write_bytes(bytes(range(256)) * 100)
    (folder / "empty").touch()
    return folder


def _opened(archive: FileArchive, url: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(b"".join(archive.open(url))))


def test_an_archive_holds_the_files_and_says_so(archive: FileArchive, folder: Path) -> None:
    steps: list[tuple[int, int]] = []
    sources = [FileSource("0/1", folder), FileSource("1/1", folder)]
    result = archive.store("7/1/supporting-files.zip", sources, {"run_id": 7}, lambda *step: steps.append(step))
    content = b"".join(archive.open(result.url))
    assert (result.bytes, result.files) == (len(content), 6)
    assert result.sha256 == hashlib.sha256(content).hexdigest()
    opened = _opened(archive, result.url)
    assert opened.testzip() is None
    assert sorted(opened.namelist()) == sorted(
        [f"{n}/1/{name}" for n in (0, 1) for name in ("b.txt", "empty", "sub/a.bin")] + ["manifest.json"]
    )
    manifest = json.loads(opened.read("manifest.json"))
    assert manifest["run_id"] == 7
    for entry in manifest["files"]:
        data = opened.read(entry["name"])
        assert (entry["size"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert steps[-1] == (6, 2 * (3 + 25_600))
    assert steps == sorted(steps)


def test_the_same_files_give_the_same_archive_and_a_repeat_replaces_it(archive: FileArchive, folder: Path) -> None:
    first, second = (archive.store("7/1/x.zip", [FileSource("", folder)], {}, lambda *_: None) for _ in range(2))
    assert first == second
    (folder / "b.txt").write_bytes(b"changed")
    third = archive.store("7/1/x.zip", [FileSource("", folder)], {}, lambda *_: None)
    assert third.url == first.url
    assert third.sha256 != first.sha256
    assert _opened(archive, first.url).read("b.txt") == b"changed"


def test_an_archive_that_is_not_there(archive: FileArchive) -> None:
    with pytest.raises(NotDelivered):
        archive.open("file:///nowhere/7/1/x.zip")


@pytest.mark.parametrize("key", ["../x.zip", "/x.zip", "a/../../x.zip"])
def test_a_key_stays_inside(archive: FileArchive, key: str) -> None:
    with pytest.raises(InvalidRequest):
        archive.store(key, [], {}, lambda *_: None)


# --- catalogue and directory ------------------------------------------------------------------------------------------


@pytest.fixture(params=["yaml", "fake"])
def catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> Catalogue:
    if request.param == "fake":
        return FakeCatalogue(CRAWLERS)
    plain, other = CRAWLERS
    entries = [
        {
            "name": "plain",
            "kind": "command",
            "command": plain.command,
            "args": {
                name: {"required": a.required, **({"default": a.default} if a.default else {})}
                for name, a in plain.args.items()
            },
            "settings": plain.settings,
            "resources": {"cpu": "500m", "memory": "64Mi"},
            "limits": plain.limits,
        },
        {"name": "other", "project": other.project},
    ]
    file = tmp_path / "crawlers.yaml"
    file.write_text(yaml.safe_dump(entries, sort_keys=False))
    return YamlCatalogue(file)


def test_a_catalogue_knows_its_crawlers(catalogue: Catalogue) -> None:
    assert catalogue.all() == CRAWLERS
    assert catalogue.get("plain") == CRAWLERS[0]
    assert catalogue.get("nope") is None


def test_the_directory_tells_chains_of_one_id_apart() -> None:
    # The adapter over a real server passes the same expectations in tests/workflows.
    directory = FakeDirectory(Owner("w", "second"))
    assert directory.is_open(Owner("w", "second"))
    assert not directory.is_open(Owner("w", "first"))

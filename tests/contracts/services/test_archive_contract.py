"""The contract of ``FileArchive``: a folder, S3 as rclone and moto serve it, and the fake."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.names import archive_key
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilesMissing, FileSource
from crawler_lifecycle.ports.protocols import FileArchive
from tests.support.fakes.services import FakeArchive
from tests.support.s3 import S3Server, moto_s3, rclone_s3, use_aws

KEY = "7/1/supporting-files.zip"


@pytest.fixture(scope="module")
def rclone() -> Iterator[S3Server]:
    with rclone_s3() as server:
        yield server


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with moto_s3() as server:
        yield server


@pytest.fixture(params=["folder", "rclone", "moto", "fake"])
def archive(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FileArchive:
    if request.param == "fake":
        return FakeArchive()
    if request.param == "folder":
        return open_archive((tmp_path / "archive").as_uri())
    server: S3Server = request.getfixturevalue(request.param)
    use_aws(monkeypatch, server.url)
    return open_archive(f"s3://{server.bucket().name}/some/prefix")


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


def test_parts_of_an_archive(archive: FileArchive, folder: Path) -> None:
    result = archive.store(KEY, [FileSource("0/1", folder)], {"run_id": 7}, lambda *_: None)
    whole = b"".join(archive.open(result.url))
    for place, limit in ((0, 10), (100, 1), (len(whole) - 5, 5), (len(whole) - 5, 100), (0, 10**6)):
        part = archive.part(result.url, place, limit)
        assert (part.data, part.size) == (whole[place : place + limit], len(whole))
    with pytest.raises(NotDelivered):
        archive.part(result.url + ".x", 0, 10)


def test_an_archive_holds_the_files_and_says_so(archive: FileArchive, folder: Path) -> None:
    steps: list[tuple[int, int]] = []
    sources = [FileSource("0/1", folder), FileSource("1/1", folder)]
    result = archive.store(KEY, sources, {"run_id": 7}, lambda *step: steps.append(step))
    content = b"".join(archive.open(result.url))
    assert (result.bytes, result.files) == (len(content), 6)
    assert result.sha256 == hashlib.sha256(content).hexdigest()
    opened = _opened(archive, result.url)
    assert opened.testzip() is None
    assert sorted(opened.namelist()) == sorted(
        [f"{n}/1/{name}" for n in (0, 1) for name in ("b.txt", "empty", "sub/a.bin")]
        + ["manifest.json"]
    )
    manifest = json.loads(opened.read("manifest.json"))
    assert manifest["run_id"] == 7
    for entry in manifest["files"]:
        data = opened.read(entry["name"])
        assert (entry["size"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert (manifest["skipped"], manifest["skipped_count"]) == ([], 0)
    assert steps[-1] == (6, 2 * (3 + 25_600))
    assert steps == sorted(steps)


def test_the_same_files_give_the_same_archive_and_a_repeat_replaces_it(
    archive: FileArchive, folder: Path
) -> None:
    first, second = (
        archive.store("7/1/x.zip", [FileSource("", folder)], {}, lambda *_: None) for _ in range(2)
    )
    assert first == second
    (folder / "b.txt").write_bytes(b"changed")
    third = archive.store("7/1/x.zip", [FileSource("", folder)], {}, lambda *_: None)
    assert third.url == first.url
    assert third.sha256 != first.sha256
    assert _opened(archive, first.url).read("b.txt") == b"changed"


def test_runs_of_one_number_have_archives_of_their_own(archive: FileArchive, folder: Path) -> None:
    """The database was restored and assigned the number again."""
    keys = [archive_key(RunRef(7, uid * 32), 1) for uid in "ab"]
    first = archive.store(keys[0], [FileSource("task-0", folder)], {}, lambda *_: None)
    content = b"".join(archive.open(first.url))
    second = archive.store(keys[1], [], {}, lambda *_: None)
    assert second.url != first.url
    assert b"".join(archive.open(first.url)) == content


def test_all_archives_of_one_run_are_removed(archive: FileArchive, folder: Path) -> None:
    runs = [RunRef(7, uid * 32) for uid in "ab"]
    urls = {
        (run, attempt): archive.store(
            archive_key(run, attempt), [FileSource("", folder)], {}, lambda *_: None
        ).url
        for run in runs
        for attempt in (1, 2)
    }
    archive.remove(runs[0])
    archive.remove(runs[0])
    for (run, _), url in urls.items():
        if run == runs[1]:
            assert b"".join(archive.open(url))
            continue
        with pytest.raises(NotDelivered):
            b"".join(archive.open(url))


def test_an_error_of_the_callback_gets_out_and_leaves_the_former_archive(
    archive: FileArchive, folder: Path
) -> None:
    first = archive.store(KEY, [FileSource("", folder)], {}, lambda *_: None)
    (folder / "b.txt").write_bytes(b"changed")

    def cancelled(*_: int) -> None:
        raise KeyError("cancelled")

    with pytest.raises(KeyError, match="cancelled"):
        archive.store(KEY, [FileSource("", folder)], {}, cancelled)
    assert _opened(archive, first.url).read("b.txt") == b"bbb"


def test_a_crawlers_own_limit_leaves_the_rest_out_and_says_so(
    archive: FileArchive, folder: Path
) -> None:
    result = archive.store(
        KEY, [FileSource("t", folder)], {}, lambda files, size: None, files_max=2
    )
    manifest = json.loads(_opened(archive, result.url).read("manifest.json"))
    assert (result.files, len(manifest["files"]), manifest["skipped_count"]) == (2, 2, 1)
    assert "limit of 2 files" in json.dumps(manifest["skipped"])


def test_no_sources_make_an_archive_of_a_manifest(archive: FileArchive) -> None:
    result = archive.store(KEY, [], {"run_id": 7}, lambda *_: None)
    assert result.files == 0
    assert _opened(archive, result.url).namelist() == ["manifest.json"]


def test_an_archive_that_is_not_there(archive: FileArchive, folder: Path) -> None:
    stored = archive.store(KEY, [FileSource("", folder)], {}, lambda *_: None)
    for url in (
        "file:///nowhere/7/1/x.zip",
        "s3://elsewhere/7/1/x.zip",
        f"{stored.url}.not",
        "",
        "x",
    ):
        with pytest.raises(NotDelivered):
            archive.open(url)


KEYS = (
    "/etc/x.zip",
    "../x.zip",
    "7/../../x.zip",
    "7/1/../../../x",
    "a//b",
    "",
    ".",
    "..",
    "a/.",
    "a\\b",
    "ä",
    "a\n",
)


def test_keys_cannot_lead_out(archive: FileArchive, folder: Path) -> None:
    for key in (*KEYS, "a/" * 600 + "b"):
        with pytest.raises(InvalidRequest, match="key"):
            archive.store(key, [FileSource("", folder)], {}, lambda *_: None)


def test_a_check_says_where_archives_go(archive: FileArchive) -> None:
    assert archive.check().startswith("archives go to ")


def _bundle(*members: tuple[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def test_a_bundle_gives_the_same_members_as_the_folder_it_was_made_of(
    archive: FileArchive, folder: Path
) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    packed = _bundle(*((str(path.relative_to(folder)), path.read_bytes()) for path in files))
    source = FileSource("task-0", bundle=lambda: iter([packed[:100], packed[100:]]))
    result = archive.store(KEY, [source], {}, lambda *_: None)
    opened = _opened(archive, result.url)
    there = {f"task-0/{path.relative_to(folder)}": path.read_bytes() for path in files}
    assert {
        name: opened.read(name) for name in opened.namelist() if name != "manifest.json"
    } == there
    assert (result.files, result.note) == (3, None)
    assert json.loads(opened.read("manifest.json"))["skipped_count"] == 0


def test_what_is_missing_is_told_and_is_not_the_same_as_empty(
    archive: FileArchive, tmp_path: Path
) -> None:
    (tmp_path / "nothing").mkdir()

    def gone() -> Iterator[bytes]:
        raise FilesMissing("nothing was uploaded")

    sources = [
        FileSource("task-0", tmp_path / "nothing"),
        FileSource("task-1", bundle=lambda: iter([_bundle()])),
        FileSource("task-2", missing="no volume"),
        FileSource("task-3", bundle=gone),
    ]
    result = archive.store(KEY, sources, {}, lambda *_: None)
    manifest = json.loads(_opened(archive, result.url).read("manifest.json"))
    assert [(entry["name"], entry["reason"]) for entry in manifest["skipped"]] == [
        ("task-2", "no volume"),
        ("task-3", "nothing was uploaded"),
    ]
    assert result.note is not None
    assert "2 tasks" in result.note
    assert "task-3: nothing was uploaded" in result.note


def test_a_storage_that_cannot_be_read_now_fails_the_export_and_leaves_the_former_archive(
    archive: FileArchive, folder: Path
) -> None:
    first = archive.store(KEY, [FileSource("", folder)], {}, lambda *_: None)

    def down() -> Iterator[bytes]:
        yield _bundle(("a", b"a" * 1000))[:50]
        raise NotDelivered("the bucket is not there now")

    with pytest.raises(NotDelivered, match="not there now"):
        archive.store(KEY, [FileSource("task-0", bundle=down)], {}, lambda *_: None)
    assert _opened(archive, first.url).read("b.txt") == b"bbb"

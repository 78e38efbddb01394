"""The archive: nothing foreign gets in, nothing makes it hang, and it is there whole or not at all."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.adapters.archive import FolderArchive, packing
from crawler_lifecycle.adapters.archive.limits import Limits
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports import FileSource

KEY = "7/1/supporting-files.zip"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
def archive(tmp_path: Path) -> FolderArchive:
    return FolderArchive((tmp_path / "archive").as_uri())


def _store(archive: FolderArchive, *folders: Path, key: str = KEY, prefix: str = "") -> ExportResult:
    return archive.store(key, [FileSource(prefix, folder) for folder in folders], {"run_id": 7}, lambda *_: None)


def _read(archive: FolderArchive, result: ExportResult) -> tuple[dict[str, bytes], Mapping[str, Any]]:
    opened = zipfile.ZipFile(io.BytesIO(b"".join(archive.open(result.url))))
    assert opened.testzip() is None
    names = opened.namelist()
    assert len({name.casefold() for name in names}) == len(names)
    assert not any(name.startswith("/") or ".." in name.split("/") or "\\" in name for name in names)
    manifest = json.loads(opened.read("manifest.json"))
    return {name: opened.read(name) for name in names if name != "manifest.json"}, manifest


def _skipped(manifest: Mapping[str, Any]) -> dict[str, str]:
    skipped: Sequence[Mapping[str, str]] = manifest["skipped"]
    return {entry["name"]: entry["reason"] for entry in skipped}


def test_only_regular_files_under_the_root_get_in_and_nothing_blocks(
    archive: FolderArchive, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "deep").write_text("secret")
    (folder / "real").write_text("real")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "relative").symlink_to("../secret")
    (folder / "linked-folder").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(".")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(os.path.relpath(folder / "socket"))
    (folder / "closed").write_text("mine")
    done: list[ExportResult] = []
    thread = threading.Thread(target=lambda: done.append(_store(archive, folder)), daemon=True)
    thread.start()
    thread.join(2)
    bound.close()
    assert done, "it hangs"
    files, manifest = _read(archive, done[0])
    assert files == {"real": b"real", "closed": b"mine"}
    reasons = _skipped(manifest)
    assert reasons["fifo"] == "a named pipe"
    assert reasons["socket"] == "a socket"
    assert {name for name, why in reasons.items() if why == "a symbolic link"} == {
        "link",
        "relative",
        "linked-folder",
        "loop",
        "dangling",
    }
    assert manifest["skipped_count"] == 7


def test_a_root_that_is_a_link_or_missing_or_a_file(archive: FolderArchive, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    (folder / "file").touch()
    for root in (tmp_path / "link", tmp_path / "none", folder / "file"):
        result = _store(archive, root, prefix="0/1")
        files, manifest = _read(archive, result)
        assert (files, result.files) == ({}, 0)
        assert "cannot be opened" in _skipped(manifest)["0/1"]


def test_a_file_replaced_by_a_link_between_look_and_open(
    archive: FolderArchive, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    real = os.stat

    def swap(name: Any, **options: Any) -> os.stat_result:
        found = real(name, **options)
        if name == b"a":
            (folder / "a").unlink()
            (folder / "a").symlink_to(tmp_path / "secret")
        if name == b"b":
            (folder / "b").unlink()
        return found

    monkeypatch.setattr(os, "stat", swap)
    result = _store(archive, folder)
    monkeypatch.undo()
    files, manifest = _read(archive, result)
    assert files == {}
    assert "cannot be opened" in _skipped(manifest)["a"]
    assert "vanished" in _skipped(manifest)["b"]


NAMES = [
    b"plain.txt",
    b"Plain.TXT",
    b"PLAIN.txt",
    b"manifest.json",
    b"latin-\xe9",
    b"tab\there",
    b"line\nbreak",
    b"bidi-\xe2\x80\xae-txt.exe",
    b"back\\slash",
    b"C:drive",
    "nfc-é".encode(),
    "nfd-e\u0301".encode(),
    "nfd-é".encode(),
    b"...",
    b".hidden",
    b"-rf",
    b"%2e%2e",
    b"space ",
    "emoji-🕷".encode(),
]


def test_names_become_safe_and_unique(archive: FolderArchive, folder: Path) -> None:
    for name in NAMES:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name)
    files, manifest = _read(archive, _store(archive, folder))
    assert sorted(files.values()) == sorted(NAMES)
    assert manifest["skipped"] == []
    assert {"latin-%E9", "line%0Abreak", "back%5Cslash", "C%3Adrive", "manifest~2.json"} <= set(files)
    plain = sorted(name for name in files if name.lower().startswith("plain"))
    assert len({name.casefold() for name in plain}) == 3
    assert all(name.isprintable() for name in files)


def test_prefixes_cannot_lead_out(archive: FolderArchive, folder: Path) -> None:
    (folder / "f").touch()
    files, _ = _read(archive, _store(archive, folder, prefix="/../../etc"))
    assert list(files) == ["etc/f"]


@pytest.mark.parametrize("seconds", [-1e9, 0, 315_000_000, 1e11])
def test_any_time_of_modification(archive: FolderArchive, folder: Path, seconds: float) -> None:
    (folder / "old").write_text("x")
    os.utime(folder / "old", (seconds, seconds))
    files, _ = _read(archive, _store(archive, folder))
    assert files == {"old": b"x"}


def test_a_growing_and_a_shrinking_file(archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK", 1000)
    monkeypatch.setattr(packing, "BEAT_S", 0)
    for name in ("grows", "shrinks"):
        (folder / name).write_bytes(b"x" * 50_000)

    def change(_: int, size: int) -> None:
        if size:
            with (folder / "grows").open("ab") as file:
                file.write(b"y" * 5000)
        if size > 60_000:
            os.truncate(folder / "shrinks", 1)

    result = archive.store(KEY, [FileSource("", folder)], {}, change)
    files, manifest = _read(archive, result)
    assert files["grows"] == b"x" * 50_000
    assert 0 < len(files["shrinks"]) < 50_000
    [entry] = [e for e in manifest["files"] if e["name"] == "shrinks"]
    assert entry["size"] == len(files["shrinks"])
    assert "shrank" in entry["trouble"]


def test_limits_leave_out_and_say_so(tmp_path: Path, folder: Path) -> None:
    for n in range(6):
        (folder / f"{n}").write_bytes(b"x" * 100)
    small = FolderArchive((tmp_path / "a").as_uri(), files_max=4)
    files, manifest = _read(small, _store(small, folder))
    assert (len(files), manifest["skipped_count"]) == (4, 2)
    assert "limit of 4 files" in _skipped(manifest)["5"]
    short = FolderArchive((tmp_path / "b").as_uri(), bytes_max=250)
    files, manifest = _read(short, _store(short, folder))
    assert (len(files), manifest["skipped_count"]) == (2, 4)


def test_a_deep_folder_ends_somewhere(archive: FolderArchive, folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=fd)
        fd, former = os.open("d", os.O_RDONLY, dir_fd=fd), fd
        os.close(former)
    os.close(fd)
    open_before = len(os.listdir("/proc/self/fd"))
    _, manifest = _read(archive, _store(archive, folder))
    assert "deeper than" in next(iter(_skipped(manifest).values()))
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_many_skipped_things_do_not_make_a_large_manifest(archive: FolderArchive, folder: Path) -> None:
    for n in range(Limits().skipped_named_max + 50):
        (folder / f"{n}").symlink_to("x")
    _, manifest = _read(archive, _store(archive, folder))
    assert len(manifest["skipped"]) == Limits().skipped_named_max
    assert manifest["skipped_count"] == Limits().skipped_named_max + 50


def test_a_sparse_file_costs_no_memory(archive: FolderArchive, folder: Path) -> None:
    import resource

    with (folder / "sparse").open("wb") as file:
        file.truncate(300 * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = _store(archive, folder)
    assert result.bytes < 5 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_a_full_disk_leaves_the_former_archive_and_no_rest(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "f").write_text("first")
    first = _store(archive, folder)
    (folder / "f").write_text("second")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotDelivered, match="No space left"):
        _store(archive, folder)
    monkeypatch.undo()
    assert _read(archive, first)[0] == {"f": b"first"}
    assert os.listdir(archive.root / "7" / "1") == ["supporting-files.zip"]


def test_what_a_killed_exporter_left_is_removed_and_a_living_one_is_not(archive: FolderArchive, folder: Path) -> None:
    import fcntl

    _store(archive, folder)
    place = archive.root / "7" / "1"
    dead, alive = place / ".supporting-files.zip.dead.part", place / ".supporting-files.zip.alive.part"
    dead.touch()
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _store(archive, folder)
        assert alive.exists()
    assert not dead.exists()


def test_an_error_in_progress_leaves_nothing(archive: FolderArchive, folder: Path) -> None:
    (folder / "f").write_text("x")

    def cancelled(*_: int) -> None:
        raise RuntimeError("cancelled")

    with pytest.raises(RuntimeError):
        archive.store(KEY, [FileSource("", folder)], {}, cancelled)
    assert os.listdir(archive.root / "7" / "1") == []


def test_two_exporters_of_one_key_at_once(archive: FolderArchive, folder: Path) -> None:
    for n in range(50):
        (folder / f"{n}").write_bytes(os.urandom(10_000))
    results: list[ExportResult] = []
    errors: list[Exception] = []

    def export() -> None:
        try:
            results.append(_store(archive, folder))
        except NotDelivered as error:
            errors.append(error)

    threads = [threading.Thread(target=export) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results
    assert len({result.sha256 for result in results}) == 1
    assert len(_read(archive, results[0])[0]) == 50
    assert os.listdir(archive.root / "7" / "1") == ["supporting-files.zip"]


def test_reading_stays_inside(archive: FolderArchive, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    archive.root.mkdir()
    for url in ((tmp_path / "secret").as_uri(), f"{archive.root.as_uri()}/../secret", "file:///etc/passwd", "x"):
        with pytest.raises(NotDelivered):
            archive.open(url)


def test_the_place_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotDelivered):
        _store(FolderArchive((tmp_path / "file").as_uri()), folder)


@pytest.mark.parametrize("url", ["archive", "file:archive", "file://host/x", "s3://bucket/prefix"])
def test_other_urls_are_refused_with_the_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_ARCHIVE__URL"):
        FolderArchive(url)

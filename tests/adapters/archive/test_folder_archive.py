"""The archive in a folder: it contains no foreign files, never hangs, and is complete or missing."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.adapters.archive import FolderArchive, limits
from crawler_lifecycle.adapters.archive.limits import ArchiveLimits
from crawler_lifecycle.adapters.archive.zip import packing
from crawler_lifecycle.adapters.archive.zip.walk import Names, safe_component
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.files import FileSource
from tests.support.run_refs import run_ref

KEY = "7/1/supporting-files.zip"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
def archive(tmp_path: Path) -> FolderArchive:
    return FolderArchive((tmp_path / "archive").as_uri())


def _store(
    archive: FolderArchive, *folders: Path, key: str = KEY, prefix: str = ""
) -> ExportResult:
    return archive.store(
        key, [FileSource(prefix, folder) for folder in folders], {"run_id": 7}, lambda *_: None
    )


def _read(
    archive: FolderArchive, result: ExportResult
) -> tuple[dict[str, bytes], Mapping[str, Any]]:
    opened = zipfile.ZipFile(io.BytesIO(b"".join(archive.open(result.url))))
    assert opened.testzip() is None
    names = opened.namelist()
    assert len({name.casefold() for name in names}) == len(names)
    assert not any(
        name.startswith("/") or ".." in name.split("/") or "\\" in name for name in names
    )
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
    thread.join(60)
    bound.close()
    assert done, "it hangs"
    files, manifest = _read(archive, done[0])
    assert files == {"real": b"real", "closed": b"mine"}
    reasons = _skipped(manifest)
    assert reasons["fifo"] == "a named pipe"
    assert reasons["socket"] == "a socket"
    links = {name for name, why in reasons.items() if why == "a symbolic link"}
    assert links == {"link", "relative", "linked-folder", "loop", "dangling"}
    assert manifest["skipped_count"] == 7


def test_a_root_that_is_a_link_or_missing_or_a_file(
    archive: FolderArchive, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(folder)
    (folder / "file").touch()
    for root in (tmp_path / "link", tmp_path / "none", folder / "file"):
        result = _store(archive, root, prefix="0/1")
        files, manifest = _read(archive, result)
        assert (files, result.files) == ({}, 0)
        assert "cannot be opened" in _skipped(manifest)["0/1"]


def test_a_file_replaced_by_a_link_between_poll_and_open(
    archive: FolderArchive, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    for name in "abcde":
        (folder / name).write_text(name)
    real = os.stat
    instead: dict[object, Callable[[Path], object]] = {
        b"a": lambda path: path.symlink_to(tmp_path / "secret"),
        b"b": lambda path: None,
        b"c": Path.mkdir,
        b"d": os.mkfifo,
    }

    def swap(name: Any, **options: Any) -> os.stat_result:
        found = real(name, **options)
        if name in instead:
            path = folder / os.fsdecode(name)
            path.unlink()
            instead[name](path)
        return found

    monkeypatch.setattr(os, "stat", swap)
    result = _store(archive, folder)
    monkeypatch.undo()
    files, manifest = _read(archive, result)
    assert files == {"e": b"e"}
    assert "cannot be opened" in _skipped(manifest)["a"]
    assert "vanished" in _skipped(manifest)["b"]
    assert _skipped(manifest)["c"] == _skipped(manifest)["d"] == "replaced while it was being read"
    assert _open_below(folder.parent) == []


NAMES = [
    *(
        b"plain.txt",
        b"Plain.TXT",
        b"PLAIN.txt",
        b"manifest.json",
        b"latin-\xe9",
        b"tab\there",
        b"line\nbreak",
    ),
    *(
        b"bidi-\xe2\x80\xae-txt.exe",
        b"back\\slash",
        b"C:drive",
        b"...",
        b".hidden",
        b"-rf",
        b"%2e%2e",
        b"space ",
    ),
    *(name.encode() for name in ("nfc-é", "nfd-e\u0301", "nfd-é", "emoji-🕷")),
]


def test_names_become_safe_and_unique(archive: FolderArchive, folder: Path) -> None:
    for name in NAMES:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name)
    files, manifest = _read(archive, _store(archive, folder))
    assert sorted(files.values()) == sorted(NAMES)
    assert manifest["skipped"] == []
    assert {"latin-%E9", "line%0Abreak", "back%5Cslash", "C%3Adrive", "manifest~2.json"} <= set(
        files
    )
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


def test_a_growing_and_a_shrinking_file(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    small = FolderArchive((tmp_path / "a").as_uri())
    small.limits = ArchiveLimits(files_max=4)
    files, manifest = _read(small, _store(small, folder))
    assert (len(files), manifest["skipped_count"]) == (4, 2)
    assert "limit of 4 files" in _skipped(manifest)["5"]
    short = FolderArchive((tmp_path / "b").as_uri())
    short.limits = ArchiveLimits(bytes_max=250)
    files, manifest = _read(short, _store(short, folder))
    assert (len(files), manifest["skipped_count"]) == (2, 4)


def test_a_deep_folder_ends_somewhere(archive: FolderArchive, folder: Path) -> None:
    os.close(_nested(folder, "d", 300))
    _, manifest = _read(archive, _store(archive, folder))
    assert "deeper than" in next(iter(_skipped(manifest).values()))
    assert _open_below(folder.parent) == []


def _nested(folder: Path, name: str, depth: int) -> int:
    """Make this number of nested folders. Return the innermost one, opened."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        fd, former = os.open(name, os.O_RDONLY, dir_fd=fd), fd
        os.close(former)
    return fd


def _open_below(folder: Path) -> list[str]:
    """Return what this process has open below the folder. Other threads open and close files
    elsewhere.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_many_skipped_things_do_not_make_a_large_manifest(
    archive: FolderArchive, folder: Path
) -> None:
    named = ArchiveLimits().skipped_named_max
    for n in range(named + 50):
        (folder / f"{n}").symlink_to("x")
    _, manifest = _read(archive, _store(archive, folder))
    assert (len(manifest["skipped"]), manifest["skipped_count"]) == (named, named + 50)
    assert manifest["skipped_reasons"] == {"a symbolic link": named + 50}


def test_a_sparse_file_costs_no_memory(archive: FolderArchive, folder: Path) -> None:
    import resource

    with (folder / "sparse").open("wb") as file:
        file.truncate(100 * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = _store(archive, folder)
    assert result.bytes < 5 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


@pytest.mark.parametrize("data", [None, 0, 2**30, 5 * 2**30 - 100])
def test_a_file_of_holes_is_left_out(
    archive: FolderArchive, folder: Path, data: int | None
) -> None:
    with (folder / "giant").open("wb") as file:
        if data is not None:
            file.seek(data)
            file.write(b"x" * 100)
        file.truncate(5 * 2**30)
    (folder / "small").write_text("small")
    files, manifest = _read(archive, _store(archive, folder))
    assert files == {"small": b"small"}
    assert "sparse: at least" in _skipped(manifest)["giant"]
    assert "of its 5368709120 bytes are holes" in _skipped(manifest)["giant"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make device nodes")
def test_devices_are_not_even_opened(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mknod(folder / "zeros", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    os.mknod(folder / "disk", 0o600 | stat.S_IFBLK, os.makedev(7, 99))
    opened: list[object] = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda name, *rest, **more: (opened.append(name), real(name, *rest, **more))[1]
    )
    _, manifest = _read(archive, _store(archive, folder))
    assert _skipped(manifest) == {"zeros": "a device", "disk": "a device"}
    assert b"zeros" not in opened
    assert b"disk" not in opened


def test_a_file_and_a_folder_of_one_name_after_folding(
    archive: FolderArchive, folder: Path
) -> None:
    for path in ("a", "A/x", "B", "b/x", "b/X", "c/x", "C/x", "manifest.JSON/x"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(path)
    files, _ = _read(archive, _store(archive, folder))
    assert sorted(files.values()) == sorted(
        path.encode() for path in ("a", "A/x", "B", "b/x", "b/X", "c/x", "C/x", "manifest.JSON/x")
    )
    members = {name.casefold() for name in (*files, "manifest.json")}
    folders = {
        "/".join(name.split("/")[:n]) for name in members for n in range(1, name.count("/") + 1)
    }
    assert len(members) == len(files) + 1
    assert not members & folders


def test_thousands_of_names_that_fold_to_one(archive: FolderArchive, folder: Path) -> None:
    for n in range(2**10):
        name = "".join(
            char.upper() if n >> bit & 1 else char for bit, char in enumerate("abcdefghij")
        )
        (folder / name).touch()
    result = _store(archive, folder)
    files, _ = _read(archive, result)
    assert len(files) == result.files == 2**10


def test_what_windows_and_long_names_make_of_it(archive: FolderArchive, folder: Path) -> None:
    long = os.fsencode(folder) + b"/" + b"\xff" * 255
    for name in (b"dot.", b"space ", b"CON", b"nul.txt", b"conx"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name)
    Path(os.fsdecode(long)).write_bytes(b"long")
    files, _ = _read(archive, _store(archive, folder))
    assert {"dot%2E", "space%20", "%43ON", "%6Eul.txt", "conx"} < set(files)
    [cut] = [name for name in files if name.startswith("%FF")]
    assert (len(cut), cut[-13]) == (255, "~")


def test_a_name_that_is_too_long_in_all(archive: FolderArchive, folder: Path) -> None:
    fd = _nested(folder, "d" * 250, 9)
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    os.close(fd)
    files, manifest = _read(archive, _store(archive, folder))
    assert files == {}
    assert "longer than 2048 bytes" in next(iter(_skipped(manifest).values()))


def test_a_folder_with_too_many_names_is_not_read_to_its_end(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OTHER_NAMES_MAX", 6)
    for n in range(20):
        os.mkfifo(folder / f"{n}")
    small = FolderArchive(archive.root.as_uri())
    small.limits = ArchiveLimits(files_max=4)
    _, manifest = _read(small, _store(small, folder))
    assert manifest["skipped_reasons"] == {
        "a named pipe": 10,
        "incomplete: over the limit of 10 names": 1,
    }


def _refuse_opening(target: bytes, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refused(name: Any, *rest: Any, **more: Any) -> int:
        if name == target:
            raise OSError(number, os.strerror(number))
        return real(name, *rest, **more)

    monkeypatch.setattr(os, "open", refused)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_not_be_read(
    archive: FolderArchive, folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "f").write_text("x")
    (folder / "z").write_text("z")
    _refuse_opening({"file": b"f", "folder": b"sub"}[what], errno.EACCES, monkeypatch)
    result = _store(archive, folder)
    monkeypatch.undo()
    files, manifest = _read(archive, result)
    assert files == {"z": b"z"}
    assert list(_skipped(manifest).values()) == ["cannot be opened: Permission denied"]


def test_too_many_open_files_are_our_trouble_and_no_reason_to_leave_something_out(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "f").write_text("x")
    _refuse_opening(b"f", errno.EMFILE, monkeypatch)
    with pytest.raises(NotDelivered, match="Too many open files"):
        _store(archive, folder)


def test_a_read_error_keeps_the_beginning(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "CHUNK", 1000)
    (folder / "bad").write_bytes(b"x" * 5000)
    real = os.fdopen

    class Failing(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
            if self.tell() >= 2000:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size) or b""

    monkeypatch.setattr(
        os, "fdopen", lambda fd, *_, **options: Failing(fd) if options else real(fd)
    )
    result = _store(archive, folder)
    monkeypatch.undo()
    files, manifest = _read(archive, result)
    assert files == {"bad": b"x" * 2000}
    assert manifest["files"][0]["trouble"] == "only its beginning: Input/output error"


# --- the zip itself -------------------------------------------------------------------------------


def test_members_can_be_read_from_the_front(archive: FolderArchive, folder: Path) -> None:
    """Streaming unpackers read without seeking and without a directory, and find sizes after the
    data.
    """
    (folder / "text").write_text("text " * 100_000)
    (folder / "noise").write_bytes(os.urandom(3 * 2**20))
    (folder / "é").write_bytes(b"")
    result = _store(archive, folder)
    rest, seen = b"".join(archive.open(result.url)), {}
    while rest[:4] == b"PK\3\4":
        flags, method, name, extra = struct.unpack("<6x2H16x2H", rest[:30])
        assert (flags & 0x08, method) == (8, zipfile.ZIP_DEFLATED)
        inflater = zlib.decompressobj(-15)
        data = inflater.decompress(rest[30 + name + extra :])
        seen[rest[30 : 30 + name].decode()] = data
        mark, crc, _, size = struct.unpack("<4sLLL", inflater.unused_data[:16])
        assert (mark, crc, size) == (b"PK\7\x08", zlib.crc32(data), len(data))
        rest = inflater.unused_data[16:]
    files, _ = _read(archive, result)
    assert {name: data for name, data in seen.items() if name != "manifest.json"} == files


@pytest.mark.skipif(
    shutil.which("unzip") is None,
    reason="unzip is not installed; the test above reads it otherwise",
)
def test_another_program_finds_no_fault(archive: FolderArchive, folder: Path) -> None:
    for n in range(50):
        (folder / f"{n}-é").write_bytes(os.urandom(n * 1000))
    result = _store(archive, folder)
    path = archive.root / KEY
    done = subprocess.run(["unzip", "-tq", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert result.files == 50


def test_pages_are_packed_by_isal_and_noise_is_not_packed(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    real = packing.isal_zlib.compressobj

    class Recorded:
        def __init__(self, *options: int) -> None:
            self._real = real(*options)

        def compress(self, data: bytes) -> bytes:
            made.append(len(data))
            return self._real.compress(data)

        def flush(self) -> bytes:
            return self._real.flush()

    monkeypatch.setattr(packing.isal_zlib, "compressobj", Recorded)
    (folder / "page").write_text("words of a page " * 10_000)
    (folder / "photo").write_bytes(os.urandom(2 * 2**20))
    result = _store(archive, folder)
    with zipfile.ZipFile(archive.root / KEY) as opened:
        page, photo = opened.getinfo("page"), opened.getinfo("photo")
    assert page.compress_size < page.file_size / 10
    assert photo.file_size < photo.compress_size < photo.file_size * 1.001
    assert sum(made) < page.file_size + 10_000, (
        "isal has seen the photo, or the page was packed by another"
    )
    assert made
    assert result.files == 2


@pytest.mark.slow
def test_a_hundred_thousand_files_fit_into_little_memory(folder: Path, tmp_path: Path) -> None:
    for outer in range(100):
        (folder / f"folder-{outer}").mkdir()
        for n in range(1001):
            (folder / f"folder-{outer}" / f"a-page-of-the-crawl-{n:06}.html").write_bytes(b"x")
    code = """
import sys
from pathlib import Path
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.ports.files import FileSource
def peak():
    return int(next(s for s in open("/proc/self/status") if s.startswith("VmHWM")).split()[1])
before = peak()
result = open_archive(sys.argv[1]).store(sys.argv[2], [FileSource("0/1", Path(sys.argv[3]))], {}, lambda *_: None)
print(result.files, (peak() - before) // 1024)
"""
    place = (tmp_path / "archive").as_uri()
    done = subprocess.run(
        [sys.executable, "-c", code, place, KEY, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    files, grown = map(int, done.stdout.split())
    assert files == 100_000
    assert grown <= 32
    archive = FolderArchive(place)
    members, manifest = _read(archive, ExportResult((archive.root / KEY).as_uri(), 0, 0, ""))
    assert len(members) == len(manifest["files"]) == 100_000
    assert manifest["skipped_reasons"] == {"over the limit of 100000 files": 100}


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


def test_what_a_killed_exporter_left_is_removed_and_a_living_one_is_not(
    archive: FolderArchive, folder: Path
) -> None:
    _store(archive, folder)
    place = archive.root / "7" / "1"
    dead, alive = (
        place / ".supporting-files.zip.dead.part",
        place / ".supporting-files.zip.alive.part",
    )
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
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: _store(archive, folder), range(4)))
    assert len({result.sha256 for result in results}) == 1
    assert len(_read(archive, results[0])[0]) == 50
    assert os.listdir(archive.root / "7" / "1") == ["supporting-files.zip"]


def test_another_exporter_removes_what_is_not_locked_yet(
    archive: FolderArchive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its creation and its lock, a file looks like one that was left behind."""
    (folder / "f").write_text("x")
    lock, others = fcntl.flock, list[ExportResult]()

    def locked_late(file: IO[bytes], how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        others.append(_store(archive, folder))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", locked_late)
    mine = _store(archive, folder)
    assert [mine.sha256] == [other.sha256 for other in others]
    assert os.listdir(archive.root / "7" / "1") == ["supporting-files.zip"]


def test_reading_stays_inside(archive: FolderArchive, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    archive.root.mkdir()
    for url in (
        (tmp_path / "secret").as_uri(),
        f"{archive.root.as_uri()}/../secret",
        "file:///etc/passwd",
        "x",
    ):
        with pytest.raises(NotDelivered):
            archive.open(url)


@pytest.mark.parametrize("url", ["archive", "file:archive", "file://host/x", "s3://bucket/prefix"])
def test_other_urls_are_refused_with_the_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_ARCHIVE__URL"):
        FolderArchive(url)


def test_a_check_leaves_nothing_and_says_what_is_wrong(
    archive: FolderArchive, tmp_path: Path
) -> None:
    assert archive.check() == f"archives go to the folder {archive.root}"
    assert os.listdir(archive.root) == []
    (tmp_path / "file").touch()
    none = FolderArchive((tmp_path / "file" / "below").as_uri())
    with pytest.raises(NotDelivered, match="LIFECYCLE_ARCHIVE__URL"):
        none.check()
    with pytest.raises(NotDelivered):
        _store(none, tmp_path)


def test_numbers_do_not_make_a_name_too_long() -> None:
    given = Names()
    for name in (
        "x" * 255,
        "é" * 127 + "x",
        "x" * 251 + ".txt",
        "." * 3 + "x" * 252,
        "x." + "y" * 253,
    ):
        for path in (name, f"a/{name}"):
            made = {given.file(path) for _ in range(12)}
            assert len(made) == 12
            assert all(len(path.rpartition("/")[2].encode()) <= 255 for path in made)


@given(
    names=st.lists(
        st.binary(min_size=1, max_size=255).filter(lambda n: b"/" not in n and b"\0" not in n)
    )
)
def test_any_names_become_safe_and_unique(names: list[bytes]) -> None:
    given = Names("manifest.json")
    made = [given.file(safe_component(name)) for name in names if name not in (b".", b"..")]
    folded = {unicodedata.normalize("NFC", name).casefold() for name in (*made, "manifest.json")}
    assert len(folded) == len(made) + 1
    for name in made:
        assert name.isprintable()
        assert name not in ("", ".", "..")
        assert not set(name) & set('\\/:*?"<>|')
        assert name[-1] not in ". "
        assert len(name.encode()) <= 255


def test_archives_in_a_folder_that_is_away_are_not_gone(
    archive: FolderArchive, folder: Path
) -> None:
    (folder / "f").write_text("first")
    _store(archive, folder)
    away = archive.root.rename(archive.root.with_name("away"))
    with pytest.raises(
        NotDelivered, match=r"mount or create the folder named by LIFECYCLE_ARCHIVE__URL"
    ):
        archive.remove(run_ref(7))
    assert list(away.iterdir())
    away.rename(archive.root)
    archive.remove(run_ref(7))

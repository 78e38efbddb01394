"""Bundles come from pods and may contain anything: nothing leaves its folder, and nothing stops an
export.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.adapters.archive.limits import ArchiveLimits
from crawler_lifecycle.adapters.archive.zip.packing import Pace, PackedZip, pack
from crawler_lifecycle.clusters.kubernetes.files.sources import (
    BundleFiles,
    NoFiles,
    VolumeFiles,
    task_files,
)
from crawler_lifecycle.domain.errors import ClusterUnavailable, InvalidRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilesMissing, FileSource
from crawler_lifecycle.ports.runs import TaskRef, Ticket
from tests.support.run_refs import run_ref

MIB = 2**20


def _member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: object
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in more.items():
        setattr(info, field, value)
    return info, content


def _tar(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def _export(
    packed: bytes, limits: ArchiveLimits | None = None, step: int = MIB
) -> tuple[zipfile.ZipFile, PackedZip, dict[str, str]]:
    """Export one bundle. Return its zip, the notes, and what was left out."""

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(packed), step):
            yield packed[at : at + step]

    target = io.BytesIO()
    source = FileSource("task-0", bundle=chunks)
    done = pack(target, [source], {}, limits or ArchiveLimits(), Pace(lambda *_: None))
    opened = zipfile.ZipFile(target)
    assert opened.testzip() is None
    manifest = json.loads(opened.read("manifest.json"))
    return opened, done, {entry["name"]: entry["reason"] for entry in manifest["skipped"]}


def _names(opened: zipfile.ZipFile) -> list[str]:
    return sorted(name for name in opened.namelist() if name != "manifest.json")


def test_names_lead_nowhere() -> None:
    names = (
        "/etc/passwd",
        "../../../up",
        "a/./b//../c",
        "..",
        "C:\\windows\\x",
        "tab\there",
        "NUL",
    )
    opened, done, skipped = _export(gzip.compress(_tar(*(_member(name, b"x") for name in names))))
    safe = ("%4EUL", "C%3A%5Cwindows%5Cx", "a/b/c", "etc/passwd", "tab%09here", "up")
    assert _names(opened) == [f"task-0/{name}" for name in safe]
    assert (done.note, skipped) == (None, {})


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a named pipe"),
        (tarfile.CONTTYPE, "not a regular file"),
    ],
)
def test_what_is_no_file_is_left_out_by_name(kind: bytes, reason: str) -> None:
    tar = _tar(_member("odd", kind=kind, linkname="/etc/shadow"), _member("good", b"good"))
    opened, done, skipped = _export(gzip.compress(tar))
    assert _names(opened) == ["task-0/good"]
    assert skipped == {"task-0/odd": reason}
    assert done.note is None


def test_the_same_name_twice_and_folders_out_of_order_lose_nothing() -> None:
    tar = _tar(*(_member(name, name.encode()) for name in ("a/x", "b/x", "a/x", "A/X", "a", "b")))
    opened, _, _ = _export(gzip.compress(tar))
    assert sorted(opened.read(name) for name in _names(opened)) == [
        b"A/X",
        b"a",
        b"a/x",
        b"a/x",
        b"b",
        b"b/x",
    ]
    assert len(set(_names(opened))) == 6


def test_times_and_long_names_come_through(tmp_path: Path) -> None:
    long = "/".join(["x" * 200] * 5)
    opened, _, _ = _export(gzip.compress(_tar(_member(long, b"long", mtime=1_000_000_000))))
    [entry] = json.loads(opened.read("manifest.json"))["files"]
    assert (entry["name"], entry["modified"]) == (f"task-0/{long}", "2001-09-09T01:46:40+00:00")


def test_every_cut_gives_what_came_before_it_and_says_so() -> None:
    packed = gzip.compress(
        _tar(_member("first", b"1" * 3000), _member("second", bytes(range(256)) * 8)), mtime=0
    )
    for end in range(0, len(packed) - 40, 7):
        opened, done, skipped = _export(packed[:end], step=5)
        assert done.note is not None
        assert "task-0" in skipped
        for name in _names(opened):
            whole = b"1" * 3000 if name.endswith("first") else bytes(range(256)) * 8
            assert whole.startswith(opened.read(name))


@given(st.binary(max_size=3000), st.booleans())
def test_whatever_comes_an_archive_is_made(noise: bytes, packed: bool) -> None:
    opened, done, _ = _export(gzip.compress(noise) if packed else noise)
    assert _names(opened) == [] or done.note is not None or not any(noise[:512])


@given(st.data())
def test_a_damaged_bundle_gives_an_archive_all_the_same(data: st.DataObject) -> None:
    tar = bytearray(
        _tar(_member("a/b", b"content" * 100), _member("c", b"more"), _member("d" * 300, b"long"))
    )
    for _ in range(data.draw(st.integers(1, 5))):
        tar[data.draw(st.integers(0, len(tar) - 1))] = data.draw(st.integers(0, 255))
    opened, _, _ = _export(gzip.compress(bytes(tar), 1))
    assert all(
        name.startswith("task-0/") and ".." not in name.split("/") for name in _names(opened)
    )


def _claiming(size: int, name: str = "bomb") -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


@pytest.mark.parametrize("size", [2**33, 2**60])
def test_a_claimed_size_costs_nothing_but_words(size: int) -> None:
    opened, done, skipped = _export(
        gzip.compress(_claiming(size) + b"\0" * 4096), ArchiveLimits(bytes_max=MIB)
    )
    assert _names(opened) == []
    assert skipped["task-0/bomb"] == f"over the limit of {MIB} bytes in total"
    assert done.note is not None
    assert "over the limits" in done.note


def test_a_bomb_is_read_no_further_than_the_limit_and_in_little_memory() -> None:
    def chunks() -> Iterator[bytes]:
        packer = zlib.compressobj(9, wbits=31)
        yield packer.compress(_claiming(2**40))
        for _ in range(100_000):
            read.append(1)
            yield packer.compress(bytes(MIB))

    read: list[int] = []
    tracemalloc.start()
    done = pack(
        io.BytesIO(),
        [FileSource("task-0", bundle=chunks)],
        {},
        ArchiveLimits(bytes_max=8 * MIB),
        Pace(lambda *_: None),
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.note is not None
    assert len(read) < 200
    assert peak < 32 * MIB


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_headers_of_any_size_are_not_kept_in_memory(kind: bytes) -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, 24 * MIB
    block = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    packed = gzip.compress(block + bytes(24 * MIB) + _tar(_member("after", b"after")))
    tracemalloc.start()
    opened, _, skipped = _export(packed, ArchiveLimits(bytes_max=256 * MIB))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * MIB
    assert _names(opened) == ([] if kind == b"L" else ["task-0/after"])
    assert skipped


def test_more_names_than_the_limit_end_the_reading() -> None:
    tar = _tar(*(_member(f"f{n}", b"x") for n in range(40)))
    limits = ArchiveLimits(files_max=10)
    opened, _, skipped = _export(gzip.compress(tar), limits)
    assert len(_names(opened)) == 10
    assert set(skipped.values()) == {"over the limit of 10 files"}


# --- where the files of pods are ------------------------------------------------------------------

TASKS = [TaskRef(1, 0, 1, "uid-0"), TaskRef(2, 1, 1, None), TaskRef(3, 2, 3, "uid-2")]


def test_folders_of_the_volume_are_found_by_run_index_and_attempt(tmp_path: Path) -> None:
    (tmp_path / "tasks" / str(run_ref(7)) / "0" / "1" / "files").mkdir(parents=True)
    (tmp_path / "tasks" / str(run_ref(7)) / "2" / "3" / "files").mkdir(parents=True)
    found = task_files("claim", tmp_path, None).files(run_ref(7), TASKS)
    assert [(source.prefix, source.folder) for source in found] == [
        ("task-0", tmp_path / f"tasks/{run_ref(7)}/0/1/files"),
        ("task-2-attempt-3", tmp_path / f"tasks/{run_ref(7)}/2/3/files"),
    ]
    assert VolumeFiles(tmp_path).files(run_ref(8), TASKS) == []


def test_a_volume_that_is_not_mounted_is_an_outage_and_not_an_empty_one(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ClusterUnavailable, match="LIFECYCLE_CLUSTER__VOLUME_PATH"):
            VolumeFiles(place).files(run_ref(7), TASKS)


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("key")
    (tmp_path / "tasks" / str(run_ref(7)) / "0" / "1").mkdir(parents=True)
    (tmp_path / "tasks" / str(run_ref(7)) / "0" / "1" / "files").symlink_to(tmp_path / "secret")
    [source] = VolumeFiles(tmp_path).files(run_ref(7), TASKS)
    target = io.BytesIO()
    done = pack(target, [source], {}, ArchiveLimits(), Pace(lambda *_: None))
    assert zipfile.ZipFile(target).namelist() == ["manifest.json"]
    assert done.note is not None


class _Bundles:
    def ticket(
        self, run: RunRef, index: int, attempt: int, part: int | None, size: int, md5: str
    ) -> Ticket:
        raise NotImplementedError

    def read(self, run: RunRef, index: int, attempt: int) -> Iterator[bytes]:
        raise FilesMissing(f"{run}/{index}/{attempt}")


def test_bundles_are_asked_for_when_they_are_read(tmp_path: Path) -> None:
    found = task_files("claim", tmp_path, _Bundles()).files(run_ref(7), TASKS)
    assert isinstance(task_files(None, None, _Bundles()), BundleFiles)
    assert [source.prefix for source in found] == ["task-0", "task-2-attempt-3"]
    assert found[1].bundle is not None
    with pytest.raises(FilesMissing, match="7/2/3"):
        found[1].bundle()


def test_a_cluster_that_keeps_no_files_says_so() -> None:
    assert isinstance(task_files(None, None, None), NoFiles)
    found = task_files(None, None, None).files(run_ref(7), TASKS)
    assert [source.prefix for source in found] == ["task-0", "task-2-attempt-3"]
    assert all("LIFECYCLE_CLUSTER__FILES_URL" in (source.missing or "") for source in found)
    with pytest.raises(InvalidRequest, match="LIFECYCLE_CLUSTER__VOLUME_PATH"):
        task_files("claim", None, None)

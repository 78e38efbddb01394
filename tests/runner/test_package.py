"""Zips with code: packed reproducibly, refused before anything is written, unpacked unchanged."""

from __future__ import annotations

import io
import os
import stat
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.features.packages.adapters import packing
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.runner import package
from crawler_lifecycle.runner.package import BadPackage, Package

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=12)
FOLDERS = st.dictionaries(
    st.lists(NAMES.filter(lambda name: not name.startswith(".")), min_size=1, max_size=3).map(
        tuple
    ),
    st.tuples(st.binary(max_size=200), st.booleans()),
    min_size=1,
    max_size=8,
)


def written(folder: Path, files: dict[tuple[str, ...], tuple[bytes, bool]]) -> None:
    for parts, (content, executable) in files.items():
        path = folder.joinpath(*parts)
        if path.is_dir() or any(above.is_file() for above in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)


def zipped(folder: Path) -> bytes:
    file = io.BytesIO()
    pack(folder, file)
    return file.getvalue()


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file()
    }


@given(FOLDERS)
def test_a_folder_comes_back_as_it_was_and_has_one_digest(
    files: dict[tuple[str, ...], tuple[bytes, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        first, second, third = (Path(name, part) for part in "abc")
        for folder in (first, second, third):
            folder.mkdir()
        written(first, files)
        written(second, dict(reversed(list(files.items()))))
        try:
            packed = zipped(first)
        except BadPackage:
            return  # all names are names of caches
        if tree(first) == tree(second):
            assert zipped(second) == packed, "the order in a folder does not matter"
        opened = Package(io.BytesIO(packed))
        assert opened.unpack(str(third)) == opened.digest()
        assert zipped(third) == packed
        assert {**tree(third)} == {key: tree(first)[key] for key in tree(third)}


def test_the_digest_does_not_depend_on_the_zip(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("x = 1\n" * 100)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("shop.py", "x = 1\n" * 100)
    assert Package(stored).digest() == Package(io.BytesIO(zipped(tmp_path))).digest()


def made(*members: tuple[str | zipfile.ZipInfo, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file


def link() -> zipfile.ZipInfo:
    member = zipfile.ZipInfo("passwd")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


def lying() -> io.BytesIO:
    """Return a file whose directory states fewer bytes than it has."""
    raw = bytearray(made(("a.py", b"x" * 5000)).getvalue())
    at = raw.rindex(b"PK\x01\x02") + 24
    raw[at : at + 4] = struct.pack("<I", 10)
    return io.BytesIO(bytes(raw))


def directory_of(files: int, of: int = 0) -> bytes:
    """A zip with the directory of so many files of ``of`` bytes each, without their contents."""
    name = b"a.py"
    size = (0, 0, of, len(name), 0, 0, 0, 0, stat.S_IFREG << 16, 0)
    entry = struct.pack(zipfile.structCentralDir, b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 33, *size)
    directory = (entry + name) * files
    counts = (0, 0, min(files, 65_534), min(files, 65_534), len(directory), 0, 0)
    return directory + struct.pack(zipfile.structEndArchive, b"PK\5\6", *counts)


#: What it states is refused, so it needs no content.
BOMB = directory_of(3, of=70 * 2**20)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (made(("../evil.py", b"")), "leads out of the folder"),
        (made(("/etc/passwd", b"")), "not a relative path"),
        (made(("a/../../b", b"")), "leads out of the folder"),
        (made(("a\\b.py", b"")), "not a relative path"),
        (made(("a//b.py", b"")), "empty parts"),
        (made(("a" * 600, b"")), "more than 512 bytes"),
        (made((link(), b"/etc/passwd")), "links and devices are not allowed"),
        (made(("a", b""), ("a/b", b"")), "it is a file and a folder"),
        (io.BytesIO(BOMB), "at most 209,715,200 are allowed"),
        (io.BytesIO(directory_of(45_000)), "more than 20,000 files"),
        (io.BytesIO(directory_of(1_000_000)), "its directory has more than 8,388,608 bytes"),
        (io.BytesIO(b"no zip"), "the zip cannot be read"),
        (io.BytesIO(), "the zip cannot be read"),
    ],
)
def test_a_hostile_zip_is_refused_before_anything_is_written(file: io.BytesIO, said: str) -> None:
    with pytest.raises(BadPackage, match=said):
        Package(file)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_there_twice_is_refused() -> None:
    with pytest.raises(BadPackage, match="twice"):
        Package(made(("a.py", b"1"), ("a.py", b"2")))


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadPackage, match=r"^a\.py: the file cannot be unpacked"):
        Package(lying()).unpack(str(tmp_path))
    assert (tmp_path / "a.py").stat().st_size <= 10


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "FILES_MAX", 3)
    with pytest.raises(BadPackage, match="more than 3 files"):
        Package(made(*((f"{n}.py", b"") for n in range(4))))
    monkeypatch.setattr(package, "_DIRECTORY_MAX", 100)
    monkeypatch.setattr(package, "_BLOCK", 100)
    with pytest.raises(BadPackage, match="its directory has more than 100 bytes"):
        Package(made(*((f"{n}.py", b"") for n in range(3))))


def test_a_folder_with_too_much_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        (tmp_path / f"{n}.py").write_text("x" * 10)
    for limit, most in (("FILES_MAX", 3), ("BYTES_MAX", 39)):
        with monkeypatch.context() as patch:
            patch.setattr(packing, limit, most)
            with pytest.raises(BadPackage, match="leave out what is not code"):
                zipped(tmp_path)
    assert len(Package(io.BytesIO(zipped(tmp_path))).paths) == 4


def test_what_cannot_be_packed_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadPackage, match="no files to deploy"):
        zipped(tmp_path)
    (tmp_path / "shop.py").write_text("")
    (tmp_path / "inner").symlink_to("shop.py")
    assert Package(io.BytesIO(zipped(tmp_path))).paths == ["inner", "shop.py"]
    (tmp_path / "out").symlink_to("/etc/passwd")
    with pytest.raises(BadPackage, match="out: this link leads out of the folder"):
        zipped(tmp_path)
    (tmp_path / "out").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadPackage, match="pipe: neither a file nor a folder"):
        zipped(tmp_path)

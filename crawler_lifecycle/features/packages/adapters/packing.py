"""Packs a project folder, an egg or a wheel into the zip that is deployed."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from crawler_lifecycle.domain.code import is_left_out
from crawler_lifecycle.runner.package import BYTES_MAX, FILES_MAX, BadPackage, check_path
from crawler_lifecycle.runner.tree import files_below

#: The oldest time that a zip can state. All files have it, so that packing twice gives the same.
_TIME = (1980, 1, 1, 0, 0, 0)
_LEVEL = 6
_BLOCK = 2**18


class PackedFile(NamedTuple):
    """A file to pack."""

    path: str
    where: Path
    executable: bool


def pack(folder: Path, target: IO[bytes]) -> list[str]:
    """Write the zip of a folder to ``target``, and return the paths in it.

    The same files give the same bytes. Raises ``BadPackage`` for a folder that cannot be deployed,
    and ``OSError``.
    """
    files = sorted(_files(folder), key=lambda file: os.fsencode(file.path))
    if not files:
        raise BadPackage(f"{folder}: there are no files to deploy")
    with new_zip(target) as archive:
        for file in files:
            with file.where.open("rb") as source:
                blocks = iter(partial(source.read, _BLOCK), b"")
                write_file(archive, file.path, blocks, executable=file.executable)
    return [file.path for file in files]


def new_zip(target: IO[bytes]) -> zipfile.ZipFile:
    """Begin the zip of a package."""
    return zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL)


def write_file(
    archive: zipfile.ZipFile, path: str, blocks: Iterable[bytes], *, executable: bool = False
) -> None:
    """Add a file, so that the same content gives the same bytes."""
    member = zipfile.ZipInfo(path, _TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.create_system = 3  # Unix
    member.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    with archive.open(member, "w") as file:
        for block in blocks:
            file.write(block)


def _files(folder: Path) -> Iterator[PackedFile]:
    """Yield the files below a folder. Raises ``BadPackage``."""
    root = folder.resolve(strict=True)
    size = 0
    for count, (path, entry) in enumerate(files_below(str(root), is_left_out), 1):
        if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root):
            raise BadPackage(f"{path}: this link leads out of the folder; replace it by a copy")
        if not entry.is_file():
            raise BadPackage(
                f"{path}: neither a file nor a folder; replace a link to a folder by a copy"
            )
        check_path(path)
        status = entry.stat()
        size += status.st_size
        if count > FILES_MAX or size > BYTES_MAX:
            raise BadPackage(
                f"{folder}: more than {FILES_MAX:,} files or {BYTES_MAX:,} bytes; leave out what "
                "is not code"
            )
        yield PackedFile(path, Path(entry.path), bool(status.st_mode & stat.S_IXUSR))

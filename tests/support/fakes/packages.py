"""Fakes of the ports of packages."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.features.packages.adapters.code_store import _name as check_digest
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.features.packages.ports import CodeStore
from crawler_lifecycle.runner.package import Package


class FakeCodeStore:
    """A ``CodeStore`` in memory."""

    def __init__(self) -> None:
        self._zips: dict[str, tuple[bytes, datetime]] = {}

    def put(self, digest: str, file: IO[bytes]) -> None:
        check_digest(digest)
        self._zips[digest] = file.read(), utc_now()

    def open(self, digest: str) -> IO[bytes]:
        check_digest(digest)
        if digest not in self._zips:
            raise NotDelivered(f"{digest}: code cannot be read")
        return io.BytesIO(self._zips[digest][0])

    def remove(self, digest: str) -> None:
        self._zips.pop(digest, None)

    def stored(self, digest: str | None = None) -> Iterator[tuple[str, datetime]]:
        for known, (_, at) in self._zips.items():
            if digest in (None, known):
                yield known, at


class FakeInspector:
    """An ``Inspector`` for which each Python file of a project is a spider without arguments."""

    def spiders(self, folder: Path) -> object:
        names = sorted(file.stem for file in folder.glob("*.py"))
        return {"spiders": [{"name": name, "args": {}} for name in names]}


def put_package(store: CodeStore, *names: str) -> str:
    """Put a project with Python files of these names into the store, and return its digest."""
    file = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            Path(folder, f"{name}.py").write_text("")
        pack(Path(folder), file)
    digest = Package(file).digest()
    file.seek(0)
    store.put(digest, file)
    return digest

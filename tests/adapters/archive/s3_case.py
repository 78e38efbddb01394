"""Helpers for tests of the S3 archive: how they store, and what they check afterwards."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from crawler_lifecycle.adapters.archive.s3.archive import S3Archive
from crawler_lifecycle.domain.names import archive_key
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.files import FileSource
from tests.support.run_refs import run_ref
from tests.support.s3 import Bucket

KEY = archive_key(run_ref(7), 1)
MIB = 2**20
#: The key below the prefix of the fixture ``archive``.
OBJECT = f"exports/crawls/{KEY}"


def store(archive: S3Archive, folder: Path) -> ExportResult:
    return archive.store(
        KEY, [FileSource("0/1", folder)], {"run_id": 7, "attempt": 1}, lambda *_: None
    )


def proved(archive: S3Archive, bucket: Bucket, folder: Path, result: ExportResult) -> None:
    """Check that the object is complete, contains exactly the files, and that nothing else is left
    in the bucket.
    """
    key = result.url.removeprefix(f"s3://{bucket.name}/")
    content = bucket.read(key)
    assert (len(content), hashlib.sha256(content).hexdigest()) == (result.bytes, result.sha256)
    assert b"".join(archive.open(result.url)) == content
    opened = zipfile.ZipFile(io.BytesIO(content))
    assert opened.testzip() is None
    there = {
        f"0/1/{path.relative_to(folder)}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {
        name: opened.read(name) for name in opened.namelist() if name != "manifest.json"
    } == there
    assert result.files == len(there)
    assert bucket.keys() == [key]
    assert bucket.unfinished() == []


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < end, "it did not come, not within 150 s"
        time.sleep(0.05)

"""The code store: zips of packages, by the digest of their contents, in a folder or a bucket.

Equal contents can be packed differently, so a zip under a digest may replace another one.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from crawler_lifecycle.adapters.archive.s3.bucket import Bucket
from crawler_lifecycle.domain.bounds import file_path
from crawler_lifecycle.domain.code import DIGEST
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.runner.tree import ALGORITHM

from ..ports import CodeStore

SETTING = "LIFECYCLE_CODE__URL"
#: The maximum number of bytes of all zips from a bucket that one machine keeps. The largest zip may
#: come on top while the oldest are removed, and the state folder of a pod has 512 MiB.
CACHED_MAX = 256 * 1024 * 1024
_BLOCK = 2**18
_NAME = re.compile(r"([0-9a-f]{64})\.zip")
_READING = "code cannot be read"
_LISTING = "code cannot be listed"


def open_code_store(url: str, cache: Path) -> CodeStore:
    """Return the store for a URL, without connecting to it. Raises ``InvalidRequest``.

    ``cache`` is the folder of this machine for zips from a bucket.
    """
    if url.startswith("s3:"):
        return CodeBucket(url, CodeFolder(cache))
    path = file_path(SETTING, url, "file:///path/of/a/folder or s3://bucket/prefix")
    return CodeFolder(Path(os.path.normpath(path)))


class CodeFolder:
    """A ``CodeStore`` in a folder. A zip gets its name only when it is complete."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, digest: str, file: IO[bytes]) -> None:
        self.write(digest, iter(lambda: file.read(_BLOCK), b""))

    def write(self, digest: str, blocks: Iterable[bytes]) -> None:
        """Store the zip that consists of these blocks. Raises ``NotDelivered``."""
        target = self.root / _name(digest)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        with _reporting("code cannot be stored", target):
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                with part.open("xb") as new:
                    new.writelines(blocks)
                    new.flush()
                    os.fsync(new.fileno())
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)

    def open(self, digest: str) -> IO[bytes]:
        target = self.root / _name(digest)
        with _reporting(_READING, target):
            return target.open("rb")

    def remove(self, digest: str) -> None:
        target = self.root / _name(digest)
        with _reporting("code cannot be removed", target):
            target.unlink(missing_ok=True)

    def stored(self, digest: str | None = None) -> Iterator[tuple[str, datetime]]:
        with _reporting(_LISTING, self.root):
            for file in self.root.glob("*.zip" if digest is None else _name(digest)):
                found = _NAME.fullmatch(file.name)
                try:
                    at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
                except FileNotFoundError:  # another process has removed it
                    continue
                if found is not None:
                    yield ALGORITHM + found[1], at

    def keep_newest(self, most: int) -> None:
        """Remove the zips that were stored first, until they have at most this many bytes."""
        newest = sorted(self.stored(), key=lambda found: found[1], reverse=True)
        size = 0
        for digest, _ in newest:
            with contextlib.suppress(FileNotFoundError):  # another process removes zips, too
                size += (self.root / _name(digest)).stat().st_size
            if size > most:
                self.remove(digest)


class CodeBucket:
    """A ``CodeStore`` below ``s3://bucket/prefix``.

    Zips that were read are kept in a folder of this machine, so what was read once stays available
    while the bucket is unavailable. Several processes may use the folder at once.
    """

    def __init__(self, url: str, cache: CodeFolder) -> None:
        self._bucket = Bucket(url, SETTING)
        self._cache = cache

    def put(self, digest: str, file: IO[bytes]) -> None:
        key = self._key(digest)
        with self._bucket.reporting("code cannot be stored", self._bucket.url(key)):
            self._bucket.client.put_object(Bucket=self._bucket.name, Key=key, Body=file)

    def open(self, digest: str) -> IO[bytes]:
        with contextlib.suppress(NotDelivered):
            return self._cache.open(digest)
        key = self._key(digest)
        body = self._bucket.get(key, _READING)["Body"]
        self._cache.write(digest, self._bucket.chunks(body, key, _READING))
        self._cache.keep_newest(CACHED_MAX)
        return self._cache.open(digest)

    def remove(self, digest: str) -> None:
        key = self._key(digest)
        with self._bucket.reporting("code cannot be removed", self._bucket.url(key)):
            self._bucket.client.delete_object(Bucket=self._bucket.name, Key=key)
        self._cache.remove(digest)

    def stored(self, digest: str | None = None) -> Iterator[tuple[str, datetime]]:
        prefix = self._bucket.prefix if digest is None else self._key(digest)
        for page in self._bucket.pages(_LISTING, Prefix=prefix):
            for entry in page.get("Contents", ()):
                found = _NAME.fullmatch(str(entry["Key"]).removeprefix(self._bucket.prefix))
                if found is not None:
                    yield ALGORITHM + found[1], entry["LastModified"]

    def _key(self, digest: str) -> str:
        return self._bucket.prefix + _name(digest)


def _name(digest: str) -> str:
    """Return the name of the zip with these contents. Raises ``InvalidRequest``."""
    found = DIGEST.fullmatch(digest)
    if found is None:
        raise InvalidRequest(f"digest: {digest!r:.80} is not allowed; give sha256: and 64 digits")
    return f"{found[1]}.zip"


@contextlib.contextmanager
def _reporting(what: str, where: Path) -> Iterator[None]:
    """Convert ``OSError`` to ``NotDelivered`` with the fix."""
    try:
        yield
    except OSError as error:
        fix = f"check that the folder named by {SETTING} exists, and its permissions"
        raise NotDelivered(f"{where}: {what}: {error.strerror or error}; {fix}") from error

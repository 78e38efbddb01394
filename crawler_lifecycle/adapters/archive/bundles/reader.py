"""Reads the bundles that tasks in pods uploaded, for an archive.

A bundle is a ``tar.gz`` cut into objects, and an end that lists them:

    PREFIX/<run>-<uid>/<index>/<attempt>/part-00000, part-00001, …
    PREFIX/<run>-<uid>/<index>/<attempt>/bundle.json

The end is written last. Without it the task uploaded nothing, or did not come to an end; with no parts in it the
crawler left no files. A task never has credentials: each object needs a ticket, an address signed for that key, that
size and that digest alone, and for a few minutes.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.adapters.archive.s3.location import connect, parsed
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import bundle_key
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilesMissing
from crawler_lifecycle.ports.runs import Ticket

if TYPE_CHECKING:
    from botocore.client import BaseClient

SETTING = "LIFECYCLE_CLUSTER__FILES_URL"
END = "bundle.json"
#: Bytes of one part, and how many parts there may be: 50 GiB for one task, packed. The runner knows both.
PART_MAX = 8 * 2**20
PARTS_MAX = 6400
END_MAX = 2 * 2**20
#: How long a ticket is good, in seconds. S3 asks at the beginning of a request.
TICKET_S = 300
CONNECT_S, READ_S, TRIES = 10, 60, 3
_CHUNK = 2**20
_NOT_THERE = ("NoSuchKey", "404")

NOTHING = "nothing was uploaded: its crawler never began, was killed, or reached neither gateway nor storage"
UNFINISHED = "its upload did not come to an end: only the beginning is here"
DAMAGED = "its bundle is damaged: a part is missing or is not what was uploaded"


class S3Bundles:
    """The port ``TaskBundles`` below ``s3://bucket/prefix``. May be used by several threads.

    Signing asks nobody; the first use reads credentials, as boto3 finds them.
    """

    def __init__(self, url: str, *, ticket_s: int = TICKET_S) -> None:
        self.bucket, self.prefix = parsed(url, SETTING)
        self._ticket_s = ticket_s
        self._lock = threading.Lock()
        self._client: BaseClient | None = None

    @property
    def root(self) -> str:
        """The URL below which everything goes."""
        return f"s3://{self.bucket}/{self.prefix}"

    def ticket(self, run: RunRef, index: int, attempt: int, part: int | None, size: int, md5: str) -> Ticket:
        """An address that takes exactly these bytes. Raises ``InvalidRequest`` and ``NotDelivered``."""
        from crawler_lifecycle.adapters.archive.s3.errors import S3_ERRORS, not_delivered

        most = END_MAX if part is None else PART_MAX
        if not 0 < size <= most:
            raise InvalidRequest(f"bytes: {size} is not allowed; give 1 to {most}")
        if part is not None and not 0 <= part < PARTS_MAX:
            raise InvalidRequest(f"part: {part} is not allowed; give 0 to {PARTS_MAX - 1}, or null for the end")
        key = self._key(run, index, attempt, part)
        where = {"Bucket": self.bucket, "Key": key, "ContentLength": size, "ContentMD5": _checked(md5)}
        expires = datetime.now(UTC) + timedelta(seconds=self._ticket_s)
        client: Any = self._s3()
        try:
            url = client.generate_presigned_url("put_object", Params=where, ExpiresIn=self._ticket_s)
        except S3_ERRORS as error:
            raise not_delivered(
                f"s3://{self.bucket}/{key}", "no address can be signed", error, setting=SETTING
            ) from error
        return Ticket(str(url), {"Content-Length": str(size), "Content-MD5": md5}, expires)

    def read(self, run: RunRef, index: int, attempt: int) -> Iterator[bytes]:
        """The bundle's bytes, each part compared with the digest that its task stated.

        Raises ``FilesMissing`` at once when nothing is there, and where it ends too early or is not what was uploaded;
        ``NotDelivered`` when the storage cannot be read now.
        """
        end = self._end(run, index, attempt)
        first = None if end is not None and not end.parts else self._part(run, index, attempt, 0)
        if end is None and first is None:
            raise FilesMissing(NOTHING)
        return self._parts(run, index, attempt, end, first)

    def _parts(
        self, run: RunRef, index: int, attempt: int, end: _End | None, first: Iterator[bytes] | None
    ) -> Iterator[bytes]:
        if end is not None and not end.parts:
            yield _EMPTY
        for number in range(PARTS_MAX if end is None else len(end.parts)):
            chunks = first if number == 0 else self._part(run, index, attempt, number)
            if chunks is None:
                raise FilesMissing(UNFINISHED if end is None else DAMAGED)
            size, digest = 0, hashlib.sha256()
            for chunk in chunks:
                size += len(chunk)
                digest.update(chunk)
                yield chunk
            if end is not None and (size, digest.hexdigest()) != end.parts[number]:
                raise FilesMissing(DAMAGED)
        if end is None:
            raise FilesMissing(UNFINISHED)
        if end.left_out:
            files = "1 file" if end.left_out == 1 else f"{end.left_out} files"
            raise FilesMissing(f"its runner left out {files}: too large, too many, or unreadable")

    def _end(self, run: RunRef, index: int, attempt: int) -> _End | None:
        body = self._get(self._key(run, index, attempt, None))
        if body is None:
            return None
        raw = b""
        for chunk in body:
            raw += chunk
            if len(raw) > END_MAX:
                break
        return _End.of(raw)

    def _part(self, run: RunRef, index: int, attempt: int, number: int) -> Iterator[bytes] | None:
        return self._get(self._key(run, index, attempt, number))

    def _get(self, key: str) -> Iterator[bytes] | None:
        """The object's bytes, ``None`` when there is no such object. Raises ``NotDelivered``."""
        from crawler_lifecycle.adapters.archive.s3.errors import S3_ERRORS, code_of, not_delivered

        client: Any = self._s3()
        try:
            body = client.get_object(Bucket=self.bucket, Key=key)["Body"]
        except S3_ERRORS as error:
            if code_of(error) in _NOT_THERE:
                return None
            raise not_delivered(
                f"s3://{self.bucket}/{key}", "files of a task cannot be read", error, setting=SETTING
            ) from error
        return _chunks(body, f"s3://{self.bucket}/{key}")

    def _key(self, run: RunRef, index: int, attempt: int, part: int | None) -> str:
        return self.prefix + bundle_key(run, index, attempt, END if part is None else f"part-{part:05d}")

    def _s3(self) -> BaseClient:
        with self._lock:
            if self._client is None:
                self._client = connect(self.root, CONNECT_S, READ_S, TRIES)
            return self._client


#: What a crawler without files left: a tar of nothing.
_EMPTY = gzip.compress(b"\0" * 1024, mtime=0)


@dataclass(frozen=True, slots=True)
class _End:
    """What ``bundle.json`` says: size and SHA-256 of each part, and how many files are in none of them."""

    parts: list[tuple[int, str]]
    left_out: int

    @classmethod
    def of(cls, raw: bytes) -> _End:
        """Raises ``FilesMissing``: it was written by a pod, and may be anything."""
        try:
            if len(raw) > END_MAX:
                raise ValueError("too long")
            stated = json.loads(raw)
            parts = [(int(part["bytes"]), str(part["sha256"])) for part in stated["parts"]]
            left_out = int(stated.get("left_out", 0))
            if len(parts) > PARTS_MAX:
                raise ValueError("too many parts")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise FilesMissing(DAMAGED) from None
        return cls(parts, left_out)


def _checked(md5: str) -> str:
    try:
        if len(base64.b64decode(md5, validate=True)) != 16:
            raise ValueError("length")
    except (ValueError, binascii.Error):
        raise InvalidRequest(f"md5: {md5[:40]!r} is not allowed; give the 16 bytes of an MD5 in base64") from None
    return md5


def _chunks(body: Any, url: str) -> Iterator[bytes]:
    from crawler_lifecycle.adapters.archive.s3.errors import S3_ERRORS, not_delivered

    try:
        yield from body.iter_chunks(_CHUNK)
    except S3_ERRORS as error:
        raise not_delivered(url, "files of a task cannot be read", error, setting=SETTING) from error
    finally:
        body.close()

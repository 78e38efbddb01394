"""The bundles that tasks in pods uploaded: reads them for an archive, and looks after the place where they are.

A bundle is a ``tar.gz`` cut into objects, and an end that lists them:

    PREFIX/<run>-<uid>/<index>/<attempt>/part-00000, part-00001, …
    PREFIX/<run>-<uid>/<index>/<attempt>/bundle.json

The end is written last. Without it the task uploaded nothing, or did not come to an end; with no parts in it the
crawler left no files. A task never has credentials: each object needs a ticket, an address signed for that key, that
size and that digest alone, and for a few minutes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from crawler_lifecycle.adapters.archive.s3.bucket import Bucket
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import bundle_key
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilesMissing
from crawler_lifecycle.ports.runs import Ticket

SETTING = "LIFECYCLE_CLUSTER__FILES_URL"
END = "bundle.json"
#: Bytes of one part, and the most parts of a bundle: 50 GiB compressed for one task. The runner has the same limits.
PART_MAX = 8 * 2**20
PARTS_MAX = 6400
END_MAX = 2 * 2**20
#: Seconds for which a ticket is valid. S3 checks this when a request begins.
TICKET_S = 300
_NOT_THERE = ("NoSuchKey", "404")
_READING = "files of a task cannot be read"
#: The key that probes have below the prefix: always the same one, because who may write may not always remove.
PROBE = "doctor-probe"

NOTHING = "nothing was uploaded: its crawler never began, was killed, or reached neither gateway nor storage"
UNFINISHED = "its upload did not come to an end: only the beginning is here"
DAMAGED = "its bundle is damaged: a part is missing or is not what was uploaded"


class S3Bundles:
    """The port ``TaskBundles`` below ``s3://bucket/prefix``. May be used by several threads.

    Signing asks nobody; the first use reads credentials, as boto3 finds them.
    """

    def __init__(self, url: str, *, ticket_s: int = TICKET_S) -> None:
        self.bucket = Bucket(url, SETTING)
        self._ticket_s = ticket_s

    def ticket(self, run: RunRef, index: int, attempt: int, part: int | None, size: int, md5: str) -> Ticket:
        """An address that takes exactly these bytes. Raises ``InvalidRequest`` and ``NotDelivered``."""
        most = END_MAX if part is None else PART_MAX
        if not 0 < size <= most:
            raise InvalidRequest(f"bytes: {size} is not allowed; give 1 to {most}")
        if part is not None and not 0 <= part < PARTS_MAX:
            raise InvalidRequest(f"part: {part} is not allowed; give 0 to {PARTS_MAX - 1}, or null for the end")
        key = self._key(run, index, attempt, part)
        where = {"Bucket": self.bucket.name, "Key": key, "ContentLength": size, "ContentMD5": md5}
        expires = datetime.now(UTC) + timedelta(seconds=self._ticket_s)
        with self.bucket.reporting("no address can be signed", self.bucket.url(key)):
            url = self.bucket.client.generate_presigned_url("put_object", Params=where, ExpiresIn=self._ticket_s)
        return Ticket(str(url), {"Content-Length": str(size), "Content-MD5": md5}, expires)

    def read(self, run: RunRef, index: int, attempt: int) -> Iterator[bytes]:
        """The bundle's bytes, each part compared with the digest that its task stated.

        Raises ``FilesMissing`` at once when nothing is there, and where it ends too early or is not what was uploaded;
        ``NotDelivered`` when the storage cannot be read now.
        """
        end = self._end(run, index, attempt)
        first = None if end is not None and not end.parts else self._get(run, index, attempt, 0)
        if end is None and first is None:
            raise FilesMissing(NOTHING)
        return self._parts(run, index, attempt, end, first)

    def _parts(
        self, run: RunRef, index: int, attempt: int, end: _End | None, first: Iterator[bytes] | None
    ) -> Iterator[bytes]:
        if end is not None and not end.parts:
            yield _EMPTY
        for number in range(PARTS_MAX if end is None else len(end.parts)):
            chunks = first if number == 0 else self._get(run, index, attempt, number)
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
        body = self._get(run, index, attempt, None)
        if body is None:
            return None
        raw = b""
        for chunk in body:
            raw += chunk
            if len(raw) > END_MAX:
                break
        return _End.of(raw)

    def _get(self, run: RunRef, index: int, attempt: int, part: int | None) -> Iterator[bytes] | None:
        """The object's bytes, ``None`` when there is no such object. Raises ``NotDelivered``."""
        from botocore.exceptions import ClientError

        from crawler_lifecycle.adapters.archive.s3.errors import code_of

        key = self._key(run, index, attempt, part)
        with self.bucket.reporting(_READING, self.bucket.url(key)):
            try:
                body = self.bucket.client.get_object(Bucket=self.bucket.name, Key=key)["Body"]
            except ClientError as error:
                if code_of(error) not in _NOT_THERE:
                    raise
                return None
        return self.bucket.chunks(body, key, _READING)

    def _key(self, run: RunRef, index: int, attempt: int, part: int | None) -> str:
        return self.bucket.prefix + bundle_key(run, index, attempt, END if part is None else f"part-{part:05d}")


class BundlesPlace:
    """``s3://bucket/prefix`` of ``LIFECYCLE_CLUSTER__FILES_URL``, for those who look after it. Thread-safe.

    Connects at the first use. Raises ``InvalidRequest`` for any other URL; everything else raises ``NotDelivered`` that
    names what failed and the cure.
    """

    def __init__(self, url: str, *, probing: bool = False) -> None:
        self.bucket = Bucket(url, SETTING, checking=probing)
        self._probe = {"Bucket": self.bucket.name, "Key": f"{self.bucket.prefix}{PROBE}"}

    @property
    def where(self) -> str:
        """The URL below which everything goes."""
        return self.bucket.root

    # --- may we use it -------------------------------------------------------------------------------------------

    def probe_writing(self) -> None:
        """Write an object, as the addresses for pods do."""
        self._call("writing an object", lambda s3: s3.put_object(**self._probe, Body=b"probe"))

    def probe_reading(self) -> None:
        """Read an object. One that is not there says as much; without the right to list it looks like a refusal."""
        from botocore.exceptions import ClientError

        from crawler_lifecycle.adapters.archive.s3.errors import code_of

        def read(s3: Any) -> None:
            try:
                s3.get_object(**self._probe)["Body"].close()
            except ClientError as error:
                if code_of(error) != "NoSuchKey":
                    raise

        self._call("reading an object", read)

    def probe_listing(self) -> None:
        """List what is there."""
        where = {"Bucket": self.bucket.name, "Prefix": self.bucket.prefix}
        self._call("listing objects", lambda s3: s3.list_objects_v2(**where, MaxKeys=1))

    def probe_removing(self) -> None:
        """Remove the probe. One that is not there is removed just as well."""
        self._call("removing an object", lambda s3: s3.delete_object(**self._probe))

    def _call(self, what: str, ask: Callable[[Any], object]) -> None:
        with self.bucket.reporting(what):
            ask(self.bucket.client)

    # --- what runs left ------------------------------------------------------------------------------------------

    def runs(self) -> set[str]:
        """The names directly below the prefix, whatever they are: of runs, if only we write here."""
        pages = self.bucket.pages("listing runs", Prefix=self.bucket.prefix, Delimiter="/")
        below = (one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ()))
        return {key.removeprefix(self.bucket.prefix).rstrip("/") for key in below}

    def put_aside(self, run: RunRef) -> None:
        """No effect: a later attempt uploads below a name of its own, which ``remove`` leaves alone."""

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove the uploads of the run's attempts up to this one; a second call removes nothing."""
        top = f"{self.bucket.prefix}{run}/"
        self.bucket.remove(top, lambda key: _attempt_of(key.removeprefix(top)) <= attempt)

    def finish(self) -> list[str]:
        """Needs no cleanup: no upload is begun here."""
        return []


def _attempt_of(rest: str) -> float:
    """The attempt of ``<index>/<attempt>/<name>``; a key of another form belongs to no attempt."""
    parts = rest.split("/")
    ours = len(parts) == 3 and all(part.isascii() and part.isdecimal() for part in parts[:2])
    return int(parts[1]) if ours else float("inf")


#: The bundle of a crawler without files: an empty tar.
_EMPTY = gzip.compress(b"\0" * 1024, mtime=0)


@dataclass(frozen=True, slots=True)
class _End:
    """Contents of ``bundle.json``: size and SHA-256 of each part, and how many files are in none of them."""

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

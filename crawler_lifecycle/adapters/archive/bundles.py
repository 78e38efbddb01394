"""Reads, checks and removes the bundles that tasks in pods have uploaded.

A bundle is a ``tar.gz`` that is cut into parts, with an end object that lists the parts:

    PREFIX/<run>-<uid>/<index>/<attempt>/part-00000, part-00001, …
    PREFIX/<run>-<uid>/<index>/<attempt>/bundle.json

The end object is written last. If it is missing, the task uploaded nothing or did not finish. If it
lists no parts, the crawler left no files. A task never has credentials. It needs a ticket for each
object, which is a URL that is signed for one key, size and digest, and is valid for a few minutes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from crawler_lifecycle.adapters.archive.s3.bucket import Bucket
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import bundle_key
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilesMissing
from crawler_lifecycle.ports.runs import Ticket

SETTING = "LIFECYCLE_CLUSTER__FILES_URL"
END = "bundle.json"
#: The maximum size of a part, and the maximum number of parts, which allow 50 GiB compressed per
#: task. The runner has the same limits.
PART_MAX = 8 * 2**20
PARTS_MAX = 6400
END_MAX = 2 * 2**20
#: Seconds for which a ticket is valid. S3 checks this when a request begins.
TICKET_S = 300
_NOT_THERE = ("NoSuchKey", "404")
_READING = "files of a task cannot be read"
#: The key of the probe object below the prefix. The key is always the same, because an account with
#: write permission may be unable to remove objects.
PROBE = "doctor-probe"

NOTHING = (
    "nothing was uploaded: its crawler never started, was killed, or reached neither gateway nor "
    "storage"
)
UNFINISHED = "its upload was not completed: only its beginning exists"
DAMAGED = "its bundle is damaged: a part is missing or differs from the upload"


_Bundle = tuple[RunRef, int, int]
"""A run, and the index and attempt of one of its tasks."""


class S3Bundles:
    """The ports ``TaskBundles`` and ``FilesPlace`` below ``s3://bucket/prefix``, which
    ``LIFECYCLE_CLUSTER__FILES_URL`` names. This class is thread-safe.

    Signing sends no request. The first use reads the credentials that boto3 finds. If ``probing``
    is true, time limits are short. Raises ``InvalidRequest`` for any other URL. Other failures
    raise ``NotDelivered`` with the failed call and the fix.
    """

    def __init__(self, url: str, *, probing: bool = False) -> None:
        self.bucket = Bucket(url, SETTING, checking=probing)
        self.where = self.bucket.root
        """The URL of the location."""
        self._probe = {"Bucket": self.bucket.name, "Key": f"{self.bucket.prefix}{PROBE}"}

    def ticket(
        self, run: RunRef, index: int, attempt: int, part: int | None, size: int, md5: str
    ) -> Ticket:
        """Return a signed URL that accepts exactly these bytes.

        Raises ``InvalidRequest`` and ``NotDelivered``.
        """
        most = END_MAX if part is None else PART_MAX
        if not 0 < size <= most:
            raise InvalidRequest(f"bytes: {size} is not allowed; give 1 to {most}")
        if part is not None and not 0 <= part < PARTS_MAX:
            raise InvalidRequest(
                f"part: {part} is not allowed; give 0 to {PARTS_MAX - 1}, or null for the "
                "end object"
            )
        key = self._key((run, index, attempt), part)
        where = {"Bucket": self.bucket.name, "Key": key, "ContentLength": size, "ContentMD5": md5}
        expires = datetime.now(UTC) + timedelta(seconds=TICKET_S)
        with self.bucket.reporting("no URL can be signed", self.bucket.url(key)):
            url = self.bucket.client.generate_presigned_url(
                "put_object", Params=where, ExpiresIn=TICKET_S
            )
        return Ticket(str(url), {"Content-Length": str(size), "Content-MD5": md5}, expires)

    def read(self, run: RunRef, index: int, attempt: int) -> Iterator[bytes]:
        """Return the bundle's bytes. Each part is compared with the digest that its task declared.

        Raises ``FilesMissing`` immediately if nothing was uploaded. The iterator raises
        ``FilesMissing`` if the bundle ends too early or differs from the upload. Raises
        ``NotDelivered`` if the storage cannot be read now.
        """
        bundle = (run, index, attempt)
        end = self._end(bundle)
        first = None if end is not None and not end.parts else self._get(bundle, 0)
        if end is None and first is None:
            raise FilesMissing(NOTHING)
        return self._parts(bundle, end, first)

    def _parts(
        self, bundle: _Bundle, end: _End | None, first: Iterator[bytes] | None
    ) -> Iterator[bytes]:
        if end is not None and not end.parts:
            yield _EMPTY
        for number in range(PARTS_MAX if end is None else len(end.parts)):
            chunks = first if number == 0 else self._get(bundle, number)
            if chunks is None:
                raise FilesMissing(UNFINISHED if end is None else DAMAGED)
            size = 0
            digest = hashlib.sha256()
            for chunk in chunks:
                size += len(chunk)
                digest.update(chunk)
                yield chunk
            if end is not None and (size, digest.hexdigest()) != end.parts[number]:
                raise FilesMissing(DAMAGED)
        if end is None:
            raise FilesMissing(UNFINISHED)
        if end.left_out:
            raise FilesMissing(
                f"its runner left out {count(end.left_out, 'file')}: too large, too many, or "
                "unreadable"
            )

    def _end(self, bundle: _Bundle) -> _End | None:
        body = self._get(bundle, None)
        if body is None:
            return None
        raw = b""
        for chunk in body:
            raw += chunk
            if len(raw) > END_MAX:
                break
        return _End.of(raw)

    def _get(self, bundle: _Bundle, part: int | None) -> Iterator[bytes] | None:
        """Return the object's bytes, or ``None`` if there is no such object.

        Raises ``NotDelivered``.
        """
        from botocore.exceptions import ClientError

        from crawler_lifecycle.adapters.archive.s3.errors import code_of

        key = self._key(bundle, part)
        with self.bucket.reporting(_READING, self.bucket.url(key)):
            try:
                body = self.bucket.client.get_object(Bucket=self.bucket.name, Key=key)["Body"]
            except ClientError as error:
                if code_of(error) not in _NOT_THERE:
                    raise
                return None
        return self.bucket.chunks(body, key, _READING)

    def _key(self, bundle: _Bundle, part: int | None) -> str:
        return self.bucket.prefix + bundle_key(*bundle, END if part is None else f"part-{part:05d}")

    # --- checks of permissions --------------------------------------------------------------------

    def probe_writing(self) -> None:
        """Write the probe object, as the signed URLs for pods do."""
        with self.bucket.reporting("writing an object"):
            self.bucket.client.put_object(**self._probe, Body=b"probe")

    def probe_reading(self) -> None:
        """Read the probe object. A missing object also counts as success.

        For a missing object, an account without the permission to list gets a refusal.
        """
        from botocore.exceptions import ClientError

        from crawler_lifecycle.adapters.archive.s3.errors import code_of

        with self.bucket.reporting("reading an object"):
            try:
                self.bucket.client.get_object(**self._probe)["Body"].close()
            except ClientError as error:
                if code_of(error) != "NoSuchKey":
                    raise

    def probe_listing(self) -> None:
        """List the first object below the prefix."""
        with self.bucket.reporting("listing objects"):
            self.bucket.client.list_objects_v2(
                Bucket=self.bucket.name, Prefix=self.bucket.prefix, MaxKeys=1
            )

    def probe_removing(self) -> None:
        """Remove the probe object. This also succeeds if the object does not exist."""
        with self.bucket.reporting("removing an object"):
            self.bucket.client.delete_object(**self._probe)

    # --- uploads of runs --------------------------------------------------------------------------

    def runs(self) -> set[str]:
        """Return the names directly below the prefix.

        These are names of runs if only our tasks write here.
        """
        pages = self.bucket.pages("listing runs", Prefix=self.bucket.prefix, Delimiter="/")
        below = (prefix["Prefix"] for page in pages for prefix in page.get("CommonPrefixes", ()))
        return {key.removeprefix(self.bucket.prefix).rstrip("/") for key in below}

    def put_aside(self, run: RunRef) -> None:
        """Do nothing, because a later attempt uploads under its own name, which ``remove`` does not
        touch.
        """

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove the uploads of the run's attempts up to ``attempt``.

        A second call removes nothing.
        """
        top = f"{self.bucket.prefix}{run}/"
        self.bucket.remove(top, lambda key: _attempt_of(key.removeprefix(top)) <= attempt)

    def finish(self) -> list[str]:
        """Return an empty list, because nothing is ever put aside here, and no cleanup is
        needed.
        """
        return []


def _attempt_of(rest: str) -> float:
    """Return the attempt in a key ``<index>/<attempt>/<name>``, or infinity for a key with a
    different form.
    """
    parts = rest.split("/")
    ours = len(parts) == 3 and all(part.isascii() and part.isdecimal() for part in parts[:2])
    return int(parts[1]) if ours else float("inf")


#: The bundle of a crawler without files: an empty tar.
_EMPTY = gzip.compress(b"\0" * 1024, mtime=0)


@dataclass(frozen=True, slots=True)
class _End:
    """The contents of ``bundle.json``: the size and SHA-256 of each part, and the number of files
    that were left out.
    """

    parts: list[tuple[int, str]]
    left_out: int

    @classmethod
    def of(cls, raw: bytes) -> _End:
        """Parse the object's content.

        Raises ``FilesMissing`` if it is invalid, because it was written by a pod and can contain
        anything.
        """
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

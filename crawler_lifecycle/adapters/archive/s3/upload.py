"""A multipart upload to S3, with two parts at a time. The object is either complete or absent.

This module also finds and aborts unfinished uploads of other processes.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from isal import isal_zlib

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.retention import upload_goes

from .errors import S3_ERRORS, code_of

PART_BYTES = 8 * 2**20
#: The maximum number of parts of an object in S3.
PARTS_MAX = 10_000
IN_FLIGHT = 2
#: The name of the object metadata with the id of the upload, which shows whether the object is ours
#: if S3's response is lost.
EXPORT_ID = "export-id"

_WAIT_S = 0.5
_POLL_EVERY_S = 1.0
#: The form of the ETag of a part, or of an object that was sent in one request. The ETag of an
#: object in parts ends with a number.
_DIGEST_ETAG = re.compile(r"[0-9a-f]{32}(-\d+)?")
_GONE = frozenset(("404", "NoSuchKey", "NotFound"))

logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
#: The data that S3 returns about an object.
Found = Mapping[str, Any]


def part_bytes(bytes_max: int) -> int:
    """Return the part size with which an archive of ``bytes_max`` needs at most ``PARTS_MAX``
    parts.

    All parts have the same size, because some services require this. The result includes a reserve
    for the overhead of the zip format.
    """
    most = bytes_max + bytes_max // 100 + 2**30
    least = -(-most // PARTS_MAX)
    return max(PART_BYTES, -(-least // 2**20) * 2**20)


def _awaited(calling: Future[_Answer], beat: Callable[[], None]) -> _Answer:
    """Return the result of a call in another thread, calling ``beat`` regularly until it ends."""
    while not wait((calling,), _WAIT_S).done:
        beat()
    return calling.result()


class Upload:
    """Takes the bytes of an object in order. One thread writes, and other threads call S3.

    An exception in the writing thread, such as the cancellation of an activity, therefore never
    interrupts a call. The memory usage is ``IN_FLIGHT`` + 1 parts. Data that fits into one part is
    sent by a single ``PutObject``. After an error inside ``with``, the sent parts are removed.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        key: str,
        headers: Mapping[str, str],
        size: int,
        beat: Callable[[], None],
    ) -> None:
        self._client = client
        self._where = {"Bucket": bucket, "Key": key}
        self._url = f"s3://{bucket}/{key}"
        self._headers = dict(headers)
        self._beat = beat
        self._part_bytes = size
        self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="s3-upload")
        self._buffer = bytearray()
        self._flying = deque[Future[tuple[str, bytes]]]()
        self._parts: list[tuple[str, bytes]] = []
        """The ETag and digest of each part that arrived."""
        self._upload_id: str | None = None
        self._size = 0
        self._crc = 0
        self._whole_etag = ""
        self._answered: Found = {}
        self._export_id = uuid.uuid4().hex
        self._metadata = {EXPORT_ID: self._export_id}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort()
        self._pool.shutdown(wait=False)

    def write(self, data: bytes) -> None:
        """Take the next bytes.

        This waits while two parts are being sent. Raises the error of a failed upload of a part.
        """
        self._buffer += data
        self._size += len(data)
        self._crc = isal_zlib.crc32(data, self._crc)
        while len(self._buffer) > self._part_bytes:
            if self._upload_id is None:
                self._call(self._create)
            self._drain(IN_FLIGHT - 1)
            part = self._buffer[: self._part_bytes]
            del self._buffer[: self._part_bytes]
            self._send(part)

    def finish(self, sha256: str, files: int) -> None:
        """Complete the object, and check that it is ours and complete.

        Raises ``NotDelivered`` or S3's error.
        """
        try:
            if self._upload_id is None:
                self._call(lambda: self._put({"sha256": sha256, "files": str(files)}))
            else:
                self._send(self._buffer)
                self._drain(0)
                self._call(self._complete)
        except S3_ERRORS as error:
            # The object may exist even if the response was lost, and it may still appear until the
            # upload is aborted.
            if not self._is_there() and not (self._abort_once() and self._is_there()):
                raise
            logger.info(
                "%s: the response was lost, but the object exists (%s)", self._url, code_of(error)
            )
        self._verify(self._head(), sha256)

    # --- parts

    def _send(self, part: bytearray) -> None:
        number = len(self._parts) + len(self._flying) + 1
        if number > PARTS_MAX:
            raise NotDelivered(f"{self._url}: more than {PARTS_MAX} parts; lower bytes_max")
        self._flying.append(self._pool.submit(self._put_part, number, part))

    def _drain(self, left: int) -> None:
        """Wait until at most ``left`` parts are being sent."""
        while len(self._flying) > left:
            self._parts.append(_awaited(self._flying.popleft(), self._beat))

    def _call(self, call: Callable[[], _Answer]) -> _Answer:
        return _awaited(self._pool.submit(call), self._beat)

    def _create(self) -> None:
        answer = self._client.create_multipart_upload(
            **self._where, **self._headers, Metadata=self._metadata
        )
        # This is checked here and not in the waiting thread. If the wait of that thread is
        # interrupted, the upload must be aborted too.
        self._upload_id = answer.get("UploadId")
        if self._upload_id is None:
            raise NotDelivered(
                f"{self._url}: this is not a response from S3; check AWS_ENDPOINT_URL"
            )

    def _put_part(self, number: int, body: bytearray) -> tuple[str, bytes]:
        digest = hashlib.md5(body, usedforsecurity=False)
        answer = self._client.upload_part(
            **self._where,
            UploadId=self._upload_id,
            PartNumber=number,
            Body=body,
            ContentMD5=_base64(digest.digest()),
        )
        if "ETag" not in answer or not _fits(answer, digest.hexdigest()):
            raise NotDelivered(
                f"{self._url}: part {number} was damaged on the network; all parts are sent again"
            )
        return answer["ETag"], digest.digest()

    def _put(self, metadata: Mapping[str, str]) -> None:
        digest = hashlib.md5(self._buffer, usedforsecurity=False)
        self._whole_etag = digest.hexdigest()
        self._answered = self._client.put_object(
            **self._where,
            **self._headers,
            Body=self._buffer,
            ContentMD5=_base64(digest.digest()),
            Metadata={**self._metadata, **metadata},
        )

    def _complete(self) -> None:
        whole = hashlib.md5(
            b"".join(digest for _, digest in self._parts), usedforsecurity=False
        ).hexdigest()
        self._whole_etag = f"{whole}-{len(self._parts)}"
        parts = [
            {"PartNumber": number, "ETag": etag} for number, (etag, _) in enumerate(self._parts, 1)
        ]
        self._answered = self._client.complete_multipart_upload(
            **self._where, UploadId=self._upload_id, MultipartUpload={"Parts": parts}
        )

    # --- check of the object

    def _head(self) -> Any:
        return self._call(lambda: self._client.head_object(**self._where, ChecksumMode="ENABLED"))

    def _is_ours(self, head: Found) -> bool:
        metadata = {str(name).lower(): value for name, value in head.get("Metadata", {}).items()}
        if EXPORT_ID in metadata:
            return bool(metadata[EXPORT_ID] == self._export_id)
        # The service does not keep metadata. The object must then have the ETag that the service
        # returned to us.
        return "ETag" in self._answered and head.get("ETag") == self._answered["ETag"]

    def _is_there(self) -> bool:
        try:
            return self._is_ours(self._head())
        except S3_ERRORS as error:
            if code_of(error) not in _GONE:
                logger.warning("%s: cannot be read (%s)", self._url, code_of(error))
            return False

    def _verify(self, head: Found, sha256: str) -> None:
        if not self._is_ours(head):
            raise NotDelivered(
                f"{self._url}: another export stored its archive here at the same time"
            )
        if wrong := self._wrong(head, sha256):
            # A damaged archive is worse than none, because readers do not notice the damage.
            self._call(lambda: self._client.delete_object(**self._where))
            raise NotDelivered(f"{self._url}: {wrong}; the object was removed and is sent again")

    def _wrong(self, head: Found, sha256: str) -> str | None:
        """Return how the object differs from the sent data, or ``None``.

        The size, the ETag and S3's checksums of the whole object are compared.
        """
        found = int(head.get("ContentLength", -1))
        if found != self._size:
            return f"{found} of {self._size} bytes arrived"
        if not (_fits(head, self._whole_etag) and _fits(self._answered, self._whole_etag)):
            return f"its ETag is not {self._whole_etag}"
        sums = {
            "ChecksumSHA256": _base64(bytes.fromhex(sha256)),
            "ChecksumCRC32": _base64(self._crc.to_bytes(4, "big")),
        }
        for name, ours in sums.items():
            theirs = str(head.get(name, ours))
            # For an object in parts, this may be a checksum of checksums, which proves no more than
            # the ETag.
            if (
                theirs != ours
                and "-" not in theirs
                and head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
            ):
                return f"its {name} is {theirs}, not {ours}"
        return None

    # --- abort

    def abort(self) -> None:
        """Remove the parts of an object that will not be finished. Never raises.

        Another thread removes the parts, so that an exception in this thread cannot prevent the
        removal.
        """
        thread = threading.Thread(target=self._abort_calls, name="s3-abort")
        thread.start()
        thread.join()

    def _abort_calls(self) -> None:
        self._abort_once()
        # A call that got no response may still begin the upload or send a part, which would remain
        # and be charged.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._abort_once()

    def _abort_once(self) -> bool:
        """Abort the upload.

        Return whether S3 no longer knew the upload, which can mean that the upload was completed.
        """
        if self._upload_id is None:
            return False
        try:
            self._client.abort_multipart_upload(**self._where, UploadId=self._upload_id)
        except S3_ERRORS as error:
            if code_of(error) == "NoSuchUpload":
                return True
            logger.warning("%s: the upload could not be aborted (%s)", self._url, code_of(error))
        return False


def _fits(answer: Found, etag: str) -> bool:
    """Return whether a returned ETag is the expected one.

    An ETag that is not a comparable digest counts as expected.

    Objects encrypted with KMS or customer keys have other ETags, and some services use digests with
    a different form.
    """
    found = str(answer.get("ETag", "")).strip('"')
    encrypted = (
        "kms" in str(answer.get("ServerSideEncryption", "")) or "SSECustomerAlgorithm" in answer
    )
    comparable = _DIGEST_ETAG.fullmatch(found) is not None and ("-" in found) == ("-" in etag)
    return encrypted or not comparable or found == etag


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


@dataclass(eq=False)
class Leftovers:
    """Finds and aborts unfinished uploads of a key.

    An upload may belong to a living exporter, which was believed dead, or is sending at the same
    time. An upload is therefore aborted only if nothing has arrived for ``quiet_s`` seconds by S3's
    own clock. If its exporter is alive after all, that export fails and is retried. This damages
    neither archive.
    """

    client: Any
    bucket: str
    key: str
    quiet_s: float
    beat: Callable[[], None]

    def remove_quiet(self) -> None:
        """Abort uploads that are already quiet.

        A missing permission is not a failure (``docs/archive.md``).
        """
        self._guarded(self._poll)

    def remove(self) -> None:
        """Abort all uploads except those of living exporters, after our own upload. If there are
        any, this waits up to ``quiet_s`` seconds.
        """
        self._guarded(self._watch)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except S3_ERRORS as error:
            # rclone's server gives this response if the bucket never had an upload.
            if code_of(error) != "NoSuchUpload":
                logger.warning(
                    "%s: unfinished uploads cannot be listed (%s)", self.key, code_of(error)
                )

    def _watch(self) -> None:
        first = watched = self._poll()
        every = min(_POLL_EVERY_S, self.quiet_s / 4)
        until = time.monotonic() + self.quiet_s + 2 * _POLL_EVERY_S
        over = False
        while watched and not over:
            # This is checked before the poll, so that a process that was suspended polls once more.
            over = time.monotonic() >= until
            wake = time.monotonic() + every
            while time.monotonic() < wake:
                self.beat()
                time.sleep(min(every, 0.1))
            now = self._poll()
            # An upload that has grown since the first poll has a living exporter and is not
            # aborted.
            watched = {
                upload: newest for upload, newest in now.items() if first.get(upload) == newest
            }

    def _poll(self) -> dict[str, datetime]:
        with ThreadPoolExecutor(1, thread_name_prefix="s3-leftovers") as pool:
            return _awaited(pool.submit(self._abort_quiet), self.beat)

    def _abort_quiet(self) -> dict[str, datetime]:
        """Abort quiet uploads.

        Return the other uploads, each with the time when data last arrived.
        """
        young: dict[str, datetime] = {}
        pages = self.client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.bucket, Prefix=self.key
        )
        for page in pages:
            for upload in page.get("Uploads", ()):
                where = {"Bucket": self.bucket, "Key": self.key, "UploadId": upload["UploadId"]}
                if upload["Key"] != self.key:
                    continue
                with _unless_gone():
                    parts = (
                        self.client.get_paginator("list_parts")
                        .paginate(**where)
                        .search("Parts[].LastModified")
                    )
                    newest = max([upload["Initiated"], *(at for at in parts if at is not None)])
                    if not upload_goes(newest, _server_time(page), self.quiet_s):
                        young[upload["UploadId"]] = newest
                        continue
                    self.client.abort_multipart_upload(**where)
                    logger.info("%s: aborted an abandoned upload", self.key)
        return young


def abort_below(client: Any, bucket: str, prefix: str) -> None:
    """Abort every unfinished upload whose key starts with this prefix.

    Raises the client's errors.
    """
    # rclone's server raises this error for the list if the bucket never had an upload.
    with _unless_gone():
        pages = list(
            client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
        )
        for upload in (upload for page in pages for upload in page.get("Uploads", ())):
            key = upload["Key"]
            if key.startswith(prefix):  # rclone's server also lists other keys
                with _unless_gone():
                    client.abort_multipart_upload(
                        Bucket=bucket, Key=key, UploadId=upload["UploadId"]
                    )


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Suppress the error that S3 no longer knows the upload, because it has ended meanwhile."""
    try:
        yield
    except S3_ERRORS as error:
        if code_of(error) != "NoSuchUpload":
            raise


def _server_time(answer: Found) -> datetime:
    try:
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError):
        return datetime.now(UTC)

"""Unfinished uploads of one key, left by a killed worker or a lost answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from crawler_lifecycle.domain.retention import upload_goes

from .errors import S3_ERRORS, code_of

if TYPE_CHECKING:
    from botocore.client import BaseClient

_LOOK_EVERY_S = 1.0
_WAIT_S = 0.5

logger = logging.getLogger(__name__)


_Answer = TypeVar("_Answer")


def patiently(call: Callable[[], _Answer], beat: Callable[[], None]) -> _Answer:
    """Make a call in another thread, so that this one beats while S3 takes its time."""
    with ThreadPoolExecutor(1, thread_name_prefix="s3-patience") as pool:
        calling = pool.submit(call)
        while not wait((calling,), _WAIT_S).done:
            beat()
        return calling.result()


class Leftovers:
    """Finds and aborts unfinished uploads of one key.

    An upload may belong to an exporter that lives (one that was taken for dead, or a resend at the same time). It is
    taken as left behind when nothing has arrived for ``quiet_s`` seconds, by S3's own clock. An exporter that was alive
    after all fails and is tried again; neither archive is damaged by that.
    """

    def __init__(self, client: BaseClient, bucket: str, key: str, quiet_s: float, beat: Callable[[], None]) -> None:
        self._client: Any = client
        self._bucket = bucket
        self._key = key
        self._quiet_s = quiet_s
        self._beat = beat

    def remove_quiet(self) -> None:
        """Abort what is quiet already. A right that is missing is no reason to fail: see ``docs/archive.md``."""
        self._guarded(self._patient_look)

    def remove(self) -> None:
        """Abort all but those of living exporters; waits up to ``quiet_s`` when there are any. After our own upload."""
        self._guarded(self._watch)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except S3_ERRORS as error:
            if code_of(error) == "NoSuchUpload":
                return  # what rclone's server answers when the bucket never had one
            logger.warning("%s: unfinished uploads cannot be looked for (%s)", self._key, code_of(error))

    def _watch(self) -> None:
        first = self._patient_look()
        watched = first
        every = min(_LOOK_EVERY_S, self._quiet_s / 4)
        until = time.monotonic() + self._quiet_s + 2 * _LOOK_EVERY_S
        over = False
        while watched and not over:
            over = time.monotonic() >= until  # asked before the look: a process that stood still looks once more
            wake = time.monotonic() + every
            while time.monotonic() < wake:
                self._beat()
                time.sleep(min(every, 0.1))
            now = self._patient_look()
            # Whatever moved since the first look lives, and is left to its exporter.
            watched = {upload: newest for upload, newest in now.items() if first.get(upload) == newest}

    def _patient_look(self) -> dict[str, datetime]:
        return patiently(self._look, self._beat)

    def _look(self) -> dict[str, datetime]:
        """Abort quiet uploads; when something last arrived for the others."""
        young: dict[str, datetime] = {}
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=self._key)
        for page in pages:
            now = _server_time(page)
            for upload in page.get("Uploads", ()):
                if upload["Key"] != self._key:
                    continue
                newest = self._newest(upload)
                if newest is None:
                    continue
                if upload_goes(newest, now, self._quiet_s):
                    self._abort(upload["UploadId"])
                else:
                    young[upload["UploadId"]] = newest
        return young

    def _newest(self, upload: Mapping[str, Any]) -> datetime | None:
        """When the last part arrived, or the upload began; ``None`` when it ended meanwhile."""
        newest: datetime = upload["Initiated"]
        where = {"Bucket": self._bucket, "Key": self._key, "UploadId": upload["UploadId"]}
        try:
            for page in self._client.get_paginator("list_parts").paginate(**where):
                newest = max([newest, *(part["LastModified"] for part in page.get("Parts", ()))])
        except S3_ERRORS as error:
            if code_of(error) != "NoSuchUpload":
                raise
            return None
        return newest

    def _abort(self, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=upload_id)
            logger.info("%s: aborted an upload that was left behind", self._key)
        except S3_ERRORS as error:
            if code_of(error) != "NoSuchUpload":
                raise


def _server_time(answer: Mapping[str, Any]) -> datetime:
    try:
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError):
        return datetime.now(UTC)

"""Archives in an S3 bucket.

Each archive is uploaded while it is being packed, and is either complete or absent.

Retries are left to Temporal. Only single calls to S3 are repeated here, at most twice.
"""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from crawler_lifecycle.adapters.archive.limits import ArchiveLimits, checked_key
from crawler_lifecycle.adapters.archive.zip.packing import Pace, Progress, pack
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.retention import UPLOADS
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilePart, FileSource

from .bucket import Bucket

SETTING = "LIFECYCLE_ARCHIVE__URL"
#: Seconds without a new part after which an unfinished upload counts as abandoned.
QUIET_S = UPLOADS.default_s
CONTENT_TYPE = "application/zip"
_READING = "the archive cannot be read"


class S3Archive:
    """The port ``FileArchive`` below ``s3://bucket/prefix``. This class is thread-safe, and
    connects on first use.

    Files that exceed the limits of an archive are left out, and listed in the archive's manifest.
    """

    def __init__(self, url: str, *, quiet_s: float = QUIET_S) -> None:
        self.bucket = Bucket(url, SETTING)
        self.limits = ArchiveLimits()
        self._quiet_s = quiet_s

    def store(
        self,
        key: str,
        sources: Sequence[FileSource],
        manifest: Mapping[str, object],
        progress: Progress,
        *,
        files_max: int | None = None,
    ) -> ExportResult:
        """Write the zip under ``key``.

        An earlier zip is replaced only when the new zip is complete. Raises ``NotDelivered``.

        ``files_max`` is the crawler's own limit. The smaller limit applies.
        """
        from .upload import Leftovers, Upload, part_bytes

        name = self.bucket.prefix + checked_key(key)
        url = self.bucket.url(name)
        pace = Pace(progress)
        try:
            with self.bucket.reporting("the archive cannot be written", url):
                client = self.bucket.client
                leftovers = Leftovers(client, self.bucket.name, name, self._quiet_s, pace)
                leftovers.remove_quiet()
                size = part_bytes(self.limits.bytes_max)
                with Upload(client, self.bucket.name, name, _headers(name), size, pace) as upload:
                    written = pack(
                        upload, sources, manifest, self.limits.of_crawler(files_max), pace
                    )
                    upload.finish(written.sha256, pace.files)
                leftovers.remove()
        except (OSError, zipfile.LargeZipFile) as error:
            raise NotDelivered(f"{url}: the archive cannot be written: {error}") from error
        return ExportResult(url, written.size, pace.files, written.sha256, written.note)

    def open(self, url: str) -> Iterator[bytes]:
        """Return the bytes of a stored archive.

        Raises ``NotDelivered`` if it is missing or cannot be read.
        """
        key = self._key(url)
        return self.bucket.chunks(self.bucket.get(key, _READING)["Body"], key, _READING)

    def part(self, url: str, place: int, limit: int) -> FilePart:
        """Return a part of a stored archive, with one request. Raises ``NotDelivered``."""
        key = self._key(url)
        answer = self.bucket.get(key, _READING, Range=f"bytes={place}-{place + limit - 1}")
        # A service that ignores the range sends the whole archive without ``ContentRange``. The
        # body of such a response is not read.
        whole = str(answer.get("ContentRange") or "").rpartition("/")[2]
        if not whole.isdecimal():
            answer["Body"].close()
            raise NotDelivered(
                f"{url}: the archive cannot be read in parts: the service ignores Range"
            )
        return FilePart(b"".join(self.bucket.chunks(answer["Body"], key, _READING)), int(whole))

    def remove(self, run: RunRef) -> None:
        """Remove all archives of the run, including unfinished uploads. Raises ``NotDelivered``."""
        from .upload import abort_below

        below = f"{self.bucket.prefix}{run}/"
        with self.bucket.reporting("the archives cannot be removed"):
            abort_below(self.bucket.client, self.bucket.name, below)
        self.bucket.remove(below)

    def _key(self, url: str) -> str:
        if not url.startswith(self.bucket.root):
            raise NotDelivered(f"{url}: {_READING}: it is not below {self.bucket.root}")
        return url.removeprefix(self.bucket.url(""))

    def check(self) -> str:
        """Try every call that an export makes, with a probe object.

        Returns a description of the destination of archives.

        Raises ``NotDelivered`` with the failed call and the fix.
        """
        from .errors import masked

        bucket = Bucket(self.bucket.root, SETTING, checking=True)
        s3 = bucket.client
        where = {"Bucket": bucket.name, "Key": f"{bucket.prefix}probe-{uuid.uuid4().hex}"}

        def call(what: str, operation: Callable[..., Any], **options: Any) -> Any:
            with bucket.reporting(what):
                return operation(**options)

        call("writing an object", s3.put_object, **where, Body=b"probe", ContentType="text/plain")
        try:
            call("reading an object", s3.head_object, **where)
            begun = call("beginning an upload", s3.create_multipart_upload, **where)
            call(
                "aborting an upload",
                s3.abort_multipart_upload,
                **where,
                UploadId=begun.get("UploadId", ""),
            )
            call(
                "listing unfinished uploads",
                s3.list_multipart_uploads,
                Bucket=bucket.name,
                Prefix=where["Key"],
            )
        finally:
            call("removing an object", s3.delete_object, **where)
        return f"archives go to {bucket.root} at {masked(s3.meta.endpoint_url)}"


def _headers(name: str) -> dict[str, str]:
    """Return the headers of an object: its type, and the file name for browsers, which is derived
    from its key.

    Encryption and storage class are left to the bucket.
    """
    run, *rest = name.split("/")[-3:]
    file = "-".join((run.partition("-")[0], *rest))
    return {"ContentType": CONTENT_TYPE, "ContentDisposition": f'attachment; filename="{file}"'}

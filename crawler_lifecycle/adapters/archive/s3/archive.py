"""Archives in an S3 bucket: streamed while they are packed; complete or absent.

``AWS_*`` variables, profiles and roles are read by boto3 itself, ``AWS_ENDPOINT_URL`` included. Retries are Temporal's;
only a single call is repeated here twice, or one lost part in a thousand would mean to start again.
"""

from __future__ import annotations

import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.adapters.archive.limits import BYTES_MAX, FILES_MAX, ArchiveLimits, checked_key
from crawler_lifecycle.adapters.archive.zip.manifest import check_owner
from crawler_lifecycle.adapters.archive.zip.packing import CHUNK, Pace, Progress, pack
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import run_number
from crawler_lifecycle.domain.retention import UPLOADS
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.files import FilePart, FileSource

from .location import connect, parsed

if TYPE_CHECKING:
    from botocore.client import BaseClient

SETTING = "LIFECYCLE_ARCHIVE__URL"
#: Silence after which an unfinished upload is taken as left behind, in seconds.
QUIET_S = UPLOADS.default_s
CONNECT_S, READ_S, TRIES = 10, 60, 3
#: Of a check: somebody sits there and waits.
CHECK_S = 5
#: Runs whose archives are listed to find the highest number: 2,000 calls, a cent and some minutes.
NAMES_MAX = 2_000_000
CONTENT_TYPE = "application/zip"
#: Name of the object metadata that holds the uid of the run whose archive it is.
RUN_UID = "run-uid"


class S3Archive:
    """The port ``FileArchive`` below ``s3://bucket/prefix``. May be used by several threads.

    ``files_max`` and ``bytes_max`` bound one archive; what does not fit is left out and named in its manifest.
    Connects at the first use and not before.
    """

    def __init__(
        self, url: str, *, files_max: int = FILES_MAX, bytes_max: int = BYTES_MAX, quiet_s: float = QUIET_S
    ) -> None:
        self.bucket, self.prefix = parsed(url, SETTING)
        self.limits = ArchiveLimits(files_max, bytes_max)
        self._quiet_s = quiet_s
        self._lock = threading.Lock()
        self._client: BaseClient | None = None

    @property
    def root(self) -> str:
        """The URL below which everything goes."""
        return f"s3://{self.bucket}/{self.prefix}"

    def store(
        self,
        key: str,
        sources: Sequence[FileSource],
        manifest: Mapping[str, object],
        progress: Progress,
        *,
        files_max: int | None = None,
    ) -> ExportResult:
        """Write the zip under ``key``, replacing an earlier one only when complete. Raises ``NotDelivered``.

        ``files_max`` is the crawler's own limit; the smaller one counts.
        """
        from .errors import S3_ERRORS, not_delivered

        name = self.prefix + checked_key(key)
        url = f"s3://{self.bucket}/{name}"
        try:
            return self._store(name, url, sources, manifest, Pace(progress), self.limits.of_crawler(files_max))
        except S3_ERRORS as error:
            raise not_delivered(url, "the archive cannot be written", error) from error
        except (OSError, zipfile.LargeZipFile) as error:
            raise NotDelivered(f"{url}: the archive cannot be written: {error}") from error

    def _store(
        self,
        name: str,
        url: str,
        sources: Sequence[FileSource],
        manifest: Mapping[str, object],
        pace: Pace,
        limits: ArchiveLimits,
    ) -> ExportResult:
        from .leftovers import Leftovers, patiently
        from .upload import Upload, part_bytes

        client: Any = self._s3()
        patiently(lambda: self._check_owner(client, name, url, manifest), pace)
        leftovers = Leftovers(client, self.bucket, name, self._quiet_s, pace)
        leftovers.remove_quiet()
        uid = manifest.get("run_uid")
        metadata = {} if uid is None else {RUN_UID: str(uid)}
        part = part_bytes(self.limits.bytes_max)
        upload = Upload(client, self.bucket, name, _headers(name), part, pace, metadata)
        try:
            written = pack(upload, sources, manifest, limits, pace)
            upload.finish(written.sha256, pace.files)
        except BaseException:
            upload.abort()
            raise
        finally:
            upload.close()
        leftovers.remove()
        return ExportResult(url, written.size, pace.files, written.sha256, written.note)

    def _check_owner(self, client: Any, name: str, url: str, manifest: Mapping[str, object]) -> None:
        """Raise ``NotDelivered`` when another run's archive is there. What S3 may not tell, or does not keep, is not
        known, and then the key alone decides as it does for whoever reads the archive."""
        from botocore.exceptions import ClientError

        from .errors import code_of
        from .upload import EXPORT_ID

        try:
            head = client.head_object(Bucket=self.bucket, Key=name)
        except ClientError as error:
            if code_of(error) not in ("404", "NoSuchKey", "NotFound", "403", "AccessDenied"):
                raise
            return
        metadata = {str(key).lower(): str(value) for key, value in head.get("Metadata", {}).items()}
        if EXPORT_ID in metadata:
            check_owner(url, manifest, metadata.get(RUN_UID))

    def open(self, url: str) -> Iterator[bytes]:
        """The bytes of a stored archive. Raises ``NotDelivered`` when there is none or it cannot be read."""
        return _chunks(self._get(url)["Body"], url)

    def part(self, url: str, place: int, limit: int) -> FilePart:
        """A part of a stored archive, by one request. Raises ``NotDelivered``."""
        answer = self._get(url, Range=f"bytes={place}-{place + limit - 1}")
        # Of what is not asked for nothing is read: a service may ignore the range.
        whole = str(answer.get("ContentRange") or "").rpartition("/")[2]
        if not whole.isdecimal():
            answer["Body"].close()
            raise NotDelivered(f"{url}: the archive cannot be read in parts: the service does not heed Range")
        return FilePart(b"".join(_chunks(answer["Body"], url)), int(whole))

    def _get(self, url: str, **options: str) -> Any:
        """The answer to a request for the object."""
        from .errors import S3_ERRORS, not_delivered

        if not url.startswith(self.root):
            raise NotDelivered(f"{url}: the archive cannot be read: it is not below {self.root}")
        client: Any = self._s3()
        try:
            return client.get_object(Bucket=self.bucket, Key=url.removeprefix(f"s3://{self.bucket}/"), **options)
        except S3_ERRORS as error:
            raise not_delivered(url, "the archive cannot be read", error) from error

    def highest_run(self, above: int = 0) -> int:
        """The highest number that a key begins with, by their first parts alone: one call for a thousand runs.

        S3 lists names as texts (``10`` before ``9``), so all of them have to be read. Raises ``NotDelivered``, also
        when they are more than ``NAMES_MAX``.
        """
        from .errors import S3_ERRORS, not_delivered

        client: Any = self._s3()
        options: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self.prefix, "Delimiter": "/"}
        try:
            for _ in range(NAMES_MAX // 1000):
                page = client.list_objects_v2(**options)
                names = (one["Prefix"].removeprefix(self.prefix) for one in page.get("CommonPrefixes", ()))
                above = max([above, *(run_number(name.rstrip("/")) for name in names)])
                if not page.get("IsTruncated"):
                    return above
                options["ContinuationToken"] = page["NextContinuationToken"]
        except S3_ERRORS as error:
            raise not_delivered(self.root, "listing the archives of runs", error) from error
        raise NotDelivered(f"{self.root} holds archives of more than {NAMES_MAX:,} runs: they were not all read")

    def check(self) -> str:
        """Do with a probe all that an export does. Raises ``NotDelivered`` that names what failed and the cure."""
        from .errors import S3_ERRORS, masked, not_delivered

        name = f"{self.prefix}probe-{uuid.uuid4().hex}"
        client: Any = connect(self.root, CHECK_S, CHECK_S, 1)
        where = {"Bucket": self.bucket, "Key": name}
        step = "connecting"

        def call(what: str, operation: Callable[..., Any], **options: Any) -> Any:
            nonlocal step
            step = what
            return operation(**options)

        try:
            call("writing an object", client.put_object, **where, Body=b"probe", ContentType="text/plain")
            try:
                call("reading an object", client.head_object, **where)
                begun = call("beginning an upload", client.create_multipart_upload, **where)
                call("aborting an upload", client.abort_multipart_upload, **where, UploadId=begun.get("UploadId", ""))
                call("listing unfinished uploads", client.list_multipart_uploads, Bucket=self.bucket, Prefix=name)
            finally:
                former = step
                call("removing an object", client.delete_object, **where)
                step = former
        except S3_ERRORS as error:
            raise not_delivered(self.root, step, error) from error
        return f"archives go to {self.root} at {masked(client.meta.endpoint_url)}"

    def _s3(self) -> BaseClient:
        with self._lock:
            if self._client is None:
                self._client = connect(self.root, CONNECT_S, READ_S, TRIES)
            return self._client


def _headers(name: str) -> dict[str, str]:
    """Encryption and storage class are left to the bucket. The name that a browser saves under is made of the key."""
    file = "-".join(name.split("/")[-3:])
    return {"ContentType": CONTENT_TYPE, "ContentDisposition": f'attachment; filename="{file}"'}


def _chunks(body: Any, url: str) -> Iterator[bytes]:
    from .errors import S3_ERRORS, not_delivered

    try:
        yield from body.iter_chunks(CHUNK)
    except S3_ERRORS as error:
        raise not_delivered(url, "the archive cannot be read", error) from error
    finally:
        body.close()

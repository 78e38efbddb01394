"""The location of bundles in object storage: the check that we may use it, and the removal of old bundles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.adapters.archive.s3.location import connect, parsed
from crawler_lifecycle.domain.run_ref import RunRef

from .reader import SETTING

if TYPE_CHECKING:
    from botocore.client import BaseClient

#: The key that probes have below the prefix: always the same one, because who may write may not always remove.
PROBE = "doctor-probe"
CONNECT_S, READ_S, TRIES = 10, 60, 3
#: Of a probe: somebody sits there and waits.
PROBE_S = 5
#: Removals at once. One request for each object: not every service can do many in one.
THREADS = 8


class BundlesPlace:
    """``s3://bucket/prefix`` of ``LIFECYCLE_CLUSTER__FILES_URL``, for those who look after it. Thread-safe.

    Connects at the first use. Raises ``InvalidRequest`` for any other URL; everything else raises ``NotDelivered`` that
    names what failed and the cure.
    """

    def __init__(self, url: str, *, probing: bool = False) -> None:
        self.bucket, self.prefix = parsed(url, SETTING)
        self._times = (PROBE_S, PROBE_S, 1) if probing else (CONNECT_S, READ_S, TRIES)
        self._lock = threading.Lock()
        self._client: BaseClient | None = None

    @property
    def where(self) -> str:
        """The URL below which everything goes."""
        return f"s3://{self.bucket}/{self.prefix}"

    # --- may we use it -------------------------------------------------------------------------------------------

    def probe_writing(self) -> None:
        """Write an object, as the addresses for pods do."""
        self._call("writing an object", lambda s3: s3.put_object(**self._probe(), Body=b"probe"))

    def probe_reading(self) -> None:
        """Read an object. One that is not there says as much; without the right to list it looks like a refusal."""

        def read(s3: Any) -> None:
            from botocore.exceptions import ClientError

            from crawler_lifecycle.adapters.archive.s3.errors import code_of

            try:
                s3.get_object(**self._probe())["Body"].close()
            except ClientError as error:
                if code_of(error) != "NoSuchKey":
                    raise

        self._call("reading an object", read)

    def probe_listing(self) -> None:
        """List what is there."""
        self._call("listing objects", lambda s3: s3.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1))

    def probe_removing(self) -> None:
        """Remove the probe. One that is not there is removed just as well."""
        self._call("removing an object", lambda s3: s3.delete_object(**self._probe()))

    def _probe(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": f"{self.prefix}{PROBE}"}

    # --- what runs left ------------------------------------------------------------------------------------------

    def runs(self) -> set[str]:
        """The names directly below the prefix, whatever they are: of runs, if only we write here."""
        found: set[str] = set()
        for page in self._pages("listing runs", Prefix=self.prefix, Delimiter="/"):
            found |= {one["Prefix"].removeprefix(self.prefix).rstrip("/") for one in page.get("CommonPrefixes", ())}
        return found

    def put_aside(self, run: RunRef) -> None:
        """Nothing: a later attempt uploads below a name of its own, which ``remove`` leaves alone."""

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove what the run's attempts up to this one uploaded; a second time, nothing."""
        top = f"{self.prefix}{run}/"

        def remove(key: str) -> None:
            self._call("removing an object", lambda s3: s3.delete_object(Bucket=self.bucket, Key=key))

        with ThreadPoolExecutor(THREADS, thread_name_prefix="tidy") as threads:
            for page in self._pages("listing objects", Prefix=top):
                keys = [str(one["Key"]) for one in page.get("Contents", ())]
                list(threads.map(remove, [key for key in keys if _attempt_of(key.removeprefix(top)) <= attempt]))

    def finish(self) -> list[str]:
        """Nothing is begun here that another call would have to end."""
        return []

    # --- calling -------------------------------------------------------------------------------------------------

    def _pages(self, what: str, **options: str) -> Iterator[dict[str, Any]]:
        after: dict[str, str] = {}
        while True:
            page = self._call(what, lambda s3, more: s3.list_objects_v2(Bucket=self.bucket, **options, **more), after)
            yield page
            if not page.get("IsTruncated"):
                return
            after = {"ContinuationToken": page["NextContinuationToken"]}

    def _call(self, what: str, ask: Callable[..., Any], *given: object) -> Any:
        from crawler_lifecycle.adapters.archive.s3.errors import S3_ERRORS, not_delivered

        try:
            return ask(self._s3(), *given)
        except S3_ERRORS as error:
            raise not_delivered(self.where, what, error, setting=SETTING) from error

    def _s3(self) -> BaseClient:
        with self._lock:
            if self._client is None:
                self._client = connect(self.where, *self._times)
            return self._client


def _attempt_of(rest: str) -> float:
    """The attempt of ``<index>/<attempt>/<name>``; what is no key of ours belongs to none."""
    parts = rest.split("/")
    ours = len(parts) == 3 and all(part.isascii() and part.isdecimal() for part in parts[:2])
    return int(parts[1]) if ours else float("inf")

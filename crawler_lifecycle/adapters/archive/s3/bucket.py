"""A location in S3, given by its URL.

The location has one client, which connects on first use. Errors contain the location and the fix.

boto3 itself reads profiles, roles and the ``AWS_*`` variables, including ``AWS_ENDPOINT_URL``.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.adapters.archive.limits import checked_key
from crawler_lifecycle.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from botocore.client import BaseClient

#: Seconds to connect, seconds to read, and tries per call. With a single try, one lost part of a
#: thousand would restart the upload.
CONNECT_S = 10
READ_S = 60
TRIES = 3
#: Seconds to connect and to read in a check, because a person is waiting for the check.
CHECK_S = 5

_CHUNK = 2**20
#: The maximum number of parallel removals. Each object needs its own request, because not every
#: service can remove several objects at once.
THREADS = 8


class Bucket:
    """A location ``s3://bucket/prefix``.

    This class is thread-safe. ``setting`` is the name of the setting with the URL.

    If ``checking`` is true, time limits are short, because a person is waiting. Raises
    ``InvalidRequest`` for any other URL.
    """

    def __init__(self, url: str, setting: str, *, checking: bool = False) -> None:
        self.name, self.prefix = _parsed(url, setting)
        self.root = f"s3://{self.name}/{self.prefix}"
        self._setting = setting
        self._checking = checking
        self._lock = threading.Lock()
        self._client: BaseClient | None = None

    @property
    def client(self) -> Any:
        """Return the client.

        Raises ``NotDelivered`` with the missing package or credentials.
        """
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    @contextmanager
    def reporting(self, what: str, where: str | None = None) -> Iterator[None]:
        """Convert errors of S3 to ``NotDelivered`` with the location, the failed call, and the
        fix.
        """
        from .errors import S3_ERRORS, not_delivered

        try:
            yield
        except S3_ERRORS as error:
            raise not_delivered(where or self.root, what, error, setting=self._setting) from error

    def url(self, key: str) -> str:
        """Return the URL of an object."""
        return f"s3://{self.name}/{key}"

    def get(self, key: str, what: str, **options: str) -> Any:
        """Return the response to a request for an object. Raises ``NotDelivered``."""
        with self.reporting(what, self.url(key)):
            return self.client.get_object(Bucket=self.name, Key=key, **options)

    def chunks(self, body: Any, key: str, what: str) -> Iterator[bytes]:
        """Yield the bytes of a response. Raises ``NotDelivered``."""
        with self.reporting(what, self.url(key)):
            try:
                yield from body.iter_chunks(_CHUNK)
            finally:
                body.close()

    def pages(self, what: str, **options: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list of objects. Raises ``NotDelivered``."""
        with self.reporting(what):
            yield from self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, **options
            )

    def remove(self, below: str, which: Callable[[str], bool] = lambda key: True) -> None:
        """Remove the objects below this prefix whose keys ``which`` accepts.

        Raises ``NotDelivered``.
        """

        def remove(key: str) -> None:
            with self.reporting("removing an object", self.url(key)):
                self.client.delete_object(Bucket=self.name, Key=key)

        with ThreadPoolExecutor(THREADS, thread_name_prefix="s3-removal") as threads:
            for page in self.pages("listing objects", Prefix=below):
                list(
                    threads.map(
                        remove,
                        filter(which, [str(entry["Key"]) for entry in page.get("Contents", ())]),
                    )
                )

    def _connect(self) -> BaseClient:
        import boto3.session
        from botocore.config import Config

        from .errors import not_delivered

        connect_timeout_s, read_timeout_s, tries = (
            (CHECK_S, CHECK_S, 1) if self._checking else (CONNECT_S, READ_S, TRIES)
        )
        config = Config(
            # This is needed for the URLs that are signed for tasks. Our own requests have it
            # anyway.
            signature_version="s3v4",
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": tries},
            # Content-MD5 protects every part, and all services support it. Some do not support
            # boto3's own checksum trailers.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            user_agent_extra="crawler-lifecycle",
        )
        with self.reporting("no connection can be made"):
            try:
                session = boto3.session.Session()
                # boto3 itself reads only AWS_DEFAULT_REGION, but containers on AWS get AWS_REGION.
                # A URL that is signed for another region is refused, and its user cannot retry as
                # boto3 does.
                region = session.region_name or os.environ.get("AWS_REGION")
                client: BaseClient = session.client("s3", region_name=region, config=config)
            except ValueError as error:
                raise not_delivered(
                    self.root, "no connection can be made", error, setting=self._setting
                ) from error
        return client


def _parsed(url: str, setting: str) -> tuple[str, str]:
    """Return the bucket and the prefix.

    The prefix is empty or ends with a slash. Raises ``InvalidRequest``.
    """
    found = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", url, re.DOTALL)
    prefix = (found.group(2) or "").strip("/") if found else ""
    try:
        if found is None or ".." in found.group(1):
            raise InvalidRequest("no bucket")
        if prefix:
            checked_key(prefix)
    except InvalidRequest:
        raise InvalidRequest(
            f"{setting}: {url!r} is not allowed; give s3://bucket or s3://bucket/prefix of "
            "plain names"
        ) from None
    return found.group(1), f"{prefix}/" if prefix else ""

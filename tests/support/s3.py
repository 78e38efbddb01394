"""Two S3 servers over HTTP: rclone's with real files on disk, and moto's; both with buckets for
tests.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3.session
import botocore.loaders
import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

RCLONE = Path(sys.executable).with_name("rclone")
START_TIMEOUT_S = 120.0
ACCESS_KEY, SECRET_KEY = "TESTACCESSKEY0000001", "canary-secret-0123456789abcdefghijklmnop"
#: Variables that could come from the machine on which the tests run.
_FOREIGN = (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_CA_BUNDLE",
    "AWS_REGION",
    "AWS_ENDPOINT_URL_S3",
)

#: Numbers of buckets: all moto servers in one process contain the same ones.
_NAMES = itertools.count()
_SESSION = boto3.session.Session
_LOADER = botocore.loaders.create_loader()


@dataclass
class S3Server:
    """A running server.

    Buckets are made through S3, because rclone caches what is in a folder.
    """

    kind: str
    url: str

    @cached_property
    def client(self) -> Any:
        """Return a client that connects directly to the server, whatever the test does to the
        adapter's connection.
        """
        return session().client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                retries={"total_max_attempts": 2}, request_checksum_calculation="when_required"
            ),
        )

    def bucket(self) -> Bucket:
        """Make a new, empty bucket."""
        bucket = Bucket(self, f"bucket-{next(_NAMES)}")
        bucket.client.create_bucket(Bucket=bucket.name)
        return bucket


class Bucket:
    """The contents of a bucket, read without the adapter."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server = server
        self.name = name
        self.client = server.client

    def keys(self) -> list[str]:
        answer = self.client.list_objects_v2(Bucket=self.name)
        return sorted(entry["Key"] for entry in answer.get("Contents", ()))

    def unfinished(self) -> list[str]:
        """Return the keys of uploads that were begun and neither completed nor aborted."""
        try:
            answer = self.client.list_multipart_uploads(Bucket=self.name)
        except ClientError as error:
            # rclone's response for a bucket that never existed.
            if error.response["Error"]["Code"] != "NoSuchUpload":
                raise
            return []
        return sorted(upload["Key"] for upload in answer.get("Uploads", ()))

    def read(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content


def aws_environment(url: str) -> dict[str, str]:
    """Return the variables by which the adapter finds a server, and nothing of this machine."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def use_aws(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Point the adapter's boto3 to a server, and let it read its service descriptions only once."""
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)
    for name, value in aws_environment(url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3.session, "Session", session)


def session() -> boto3.session.Session:
    """Return a session that shares boto3's service descriptions with all others, because reading
    them is most of a client's cost.
    """
    core = botocore.session.get_session()
    core.register_component("data_loader", _LOADER)
    return _SESSION(botocore_session=core)


@contextmanager
def rclone_s3(*options: str, host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run `rclone serve s3` with its own folder; end it by its process id."""
    with tempfile.TemporaryDirectory(prefix="rclone-s3-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                rclone_command(folder / "data", *options, host=host),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": name},
            )
        try:
            yield S3Server("rclone", _address(process, folder / "log"))
        finally:
            process.kill()
            process.wait()


def rclone_command(folder: Path, *options: str, host: str = "127.0.0.1") -> Sequence[str]:
    """Return the command line of a server for a folder, on a free port that it writes into its log."""
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    return [
        *(str(RCLONE), "serve", "s3", "--addr", f"{host}:0", "--auth-key", keys),
        *("--config", os.devnull, *options, str(folder)),
    ]


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"Starting s3 server on \[(http://[^]/]+)/\]", log.read_text()):
            return found.group(1)
        time.sleep(0.02)
    raise AssertionError(f"rclone did not start: {log.read_text()}")


@contextmanager
def moto_s3() -> Iterator[S3Server]:
    """moto's server in this process."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server("moto", f"http://{host}:{port}")
    finally:
        server.stop()

"""Shared fixtures for tests of the S3 archive: servers, a faulty connection, and folders of two
sizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.archive.s3 import upload
from crawler_lifecycle.adapters.archive.s3.archive import S3Archive
from tests.support.s3 import Bucket, S3Server, moto_s3, rclone_s3, use_aws
from tests.support.s3_faults import FaultProxy, fault_proxy

MIB = 2**20


@pytest.fixture(scope="session")
def rclone_server() -> Iterator[S3Server]:
    with rclone_s3() as running:
        yield running


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    with moto_s3() as running:
        yield running


@pytest.fixture(params=["rclone", "moto"])
def server(request: pytest.FixtureRequest) -> S3Server:
    running: S3Server = request.getfixturevalue(f"{request.param}_server")
    return running


@pytest.fixture
def bucket(server: S3Server) -> Bucket:
    return server.bucket()


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with fault_proxy(server.url) as between:
        use_aws(monkeypatch, between.url)
        yield between


@pytest.fixture
def part_size(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> int:
    """Use small parts, so that little data makes many. moto insists on the minimum size of S3,
    rclone does not.
    """
    size = 5 * MIB if server.kind == "moto" else MIB // 8
    monkeypatch.setattr(upload, "part_bytes", lambda _: size)
    return size


@pytest.fixture
def archive(bucket: Bucket, proxy: FaultProxy) -> S3Archive:
    return S3Archive(f"s3://{bucket.name}/exports/crawls", quiet_s=0.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files for an archive of one part."""
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("text " * 1000)
    (folder / "sub" / "b.bin").write_bytes(random.Random(1).randbytes(20_000))
    return folder


@pytest.fixture
def large(folder: Path, part_size: int) -> Path:
    """Files for an archive of four parts."""
    for n in range(4):
        (folder / f"large-{n}").write_bytes(random.Random(n).randbytes(part_size * 4 // 5))
    return folder

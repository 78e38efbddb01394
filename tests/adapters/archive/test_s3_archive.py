"""The archive in S3: one request or several parts, complete or missing, and every error in words
without secrets.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.adapters.archive.s3 import bucket as s3_bucket
from crawler_lifecycle.adapters.archive.s3 import upload as s3_upload
from crawler_lifecycle.adapters.archive.s3.archive import S3Archive
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.ports.files import FileSource
from tests.adapters.archive.s3_case import KEY, MIB, OBJECT, proved, store, until
from tests.support.s3 import Bucket, S3Server, aws_environment, use_aws
from tests.support.s3_faults import Fault, FaultProxy


def test_a_small_archive_is_one_request(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, folder: Path
) -> None:
    result = store(archive, folder)
    assert result.url == f"s3://{bucket.name}/{OBJECT}"
    proved(archive, bucket, folder, result)
    assert (proxy.calls["PutObject"], proxy.calls["CreateMultipartUpload"]) == (1, 0)
    head = bucket.client.head_object(Bucket=bucket.name, Key=OBJECT)
    assert head["ContentType"] == "application/zip"
    assert head["ContentDisposition"] == 'attachment; filename="7-1-supporting-files.zip"'
    metadata = {name.lower(): value for name, value in head["Metadata"].items()}
    assert (metadata["sha256"], metadata["files"]) == (result.sha256, "2")


def test_a_large_one_goes_in_parts(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path
) -> None:
    result = store(archive, large)
    proved(archive, bucket, large, result)
    assert (
        proxy.calls["UploadPart"],
        proxy.calls["CompleteMultipartUpload"],
        proxy.calls["PutObject"],
    ) == (4, 1, 0)


def test_exactly_one_part_is_one_request_and_a_byte_more_is_two(
    bucket: Bucket, proxy: FaultProxy, archive: S3Archive
) -> None:
    client = archive.bucket.client
    for size, parts in ((5 * MIB, 0), (5 * MIB + 1, 2), (10 * MIB, 2), (0, 0)):
        proxy.calls.clear()
        data = os.urandom(size)
        with s3_upload.Upload(
            client, bucket.name, f"size/{size}", {}, 5 * MIB, lambda: None
        ) as upload:
            for start in range(0, size, 3 * MIB):
                upload.write(data[start : start + 3 * MIB])
            upload.finish(hashlib.sha256(data).hexdigest(), 1)
        assert (proxy.calls["UploadPart"], proxy.calls["PutObject"]) == (parts, 0 if parts else 1)
        assert bucket.read(f"size/{size}") == data
    assert bucket.unfinished() == []


@pytest.mark.parametrize("bytes_max", [1, 50 * 2**30, 78 * 2**30, 200 * 2**30, 5 * 2**40])
def test_parts_are_always_few_enough(bytes_max: int) -> None:
    size = s3_upload.part_bytes(bytes_max)
    assert size % MIB == 0
    assert size >= 8 * MIB
    assert (bytes_max * 1.01 + 2**30) / size <= s3_upload.PARTS_MAX
    if bytes_max <= 50 * 2**30:
        assert size == 8 * MIB


def test_two_parts_are_on_their_way_and_never_more(
    archive: S3Archive, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    flying, most, lock, first = 0, 0, threading.Lock(), threading.Barrier(2)
    real = s3_upload.Upload._put_part

    def counted(self: s3_upload.Upload, number: int, body: bytearray) -> object:
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        try:
            if number <= 2:
                first.wait(60)  # neither arrives before both are in progress
            return real(self, number, body)
        finally:
            with lock:
                flying -= 1

    monkeypatch.setattr(s3_upload.Upload, "_put_part", counted)
    store(archive, large)
    assert most == 2


@pytest.mark.parametrize("operation", ["PutObject", "HeadObject", "ListMultipartUploads"])
def test_progress_goes_on_while_the_server_takes_its_time(
    archive: S3Archive,
    proxy: FaultProxy,
    folder: Path,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_bucket, "TRIES", 1)
    proxy.faults.append(Fault("hang", operation))
    beats: list[tuple[int, int]] = []

    def progress(*step: int) -> None:
        if proxy.calls[operation]:
            beats.append((step[0], step[1]))
        if len(beats) >= 3:
            proxy.over.set()  # then it closes the connection

    with contextlib.suppress(NotDelivered):
        archive.store(KEY, [FileSource("", folder)], {}, progress)
    assert beats[:3] == [beats[0]] * 3


_CHILD = """
import sys, time
from pathlib import Path
from crawler_lifecycle.adapters.archive.s3.archive import S3Archive
from crawler_lifecycle.adapters.archive.s3 import upload
from crawler_lifecycle.adapters.archive.zip import packing
from crawler_lifecycle.ports.files import FileSource

part = int(sys.argv[4])
upload.part_bytes = lambda _: part
send, put, sent, arrived = upload.Upload._send, upload.Upload._put_part, [], []

def sending(self, part):
    send(self, part)
    sent.append(1)

def putting(self, *args):
    answer = put(self, *args)
    arrived.append(1)
    return answer

upload.Upload._send, upload.Upload._put_part = sending, putting
packing.BEAT_S = 0

def progress(files, size):
    if len(sent) >= 2:
        while len(arrived) < len(sent):
            time.sleep(0.01)
        print("at rest", flush=True)
        time.sleep(600)

S3Archive(sys.argv[1]).store(sys.argv[2], [FileSource("0/1", Path(sys.argv[3]))], {}, progress)
"""


def test_what_a_killed_worker_left_is_removed_by_the_next_try(
    server: S3Server, bucket: Bucket, large: Path, part_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{bucket.name}/exports/crawls"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, url, KEY, str(large), str(part_size)],
        env={**os.environ, **aws_environment(server.url)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "at rest\n", "nothing of it is on its way any more"
        child.send_signal(signal.SIGKILL)
    assert (bucket.keys(), bucket.unfinished()) == ([], [OBJECT])
    use_aws(monkeypatch, server.url)
    archive = S3Archive(url, quiet_s=1.5)
    proved(archive, bucket, large, store(archive, large))


# --- checks, URLs, laziness -----------------------------------------------------------------------


def test_a_check_does_what_an_export_does_and_leaves_nothing(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy
) -> None:
    assert archive.check() == f"archives go to s3://{bucket.name}/exports/crawls/ at {proxy.url}"
    assert (bucket.keys(), bucket.unfinished()) == ([], [])
    assert {
        *(
            "PutObject",
            "HeadObject",
            "CreateMultipartUpload",
            "AbortMultipartUpload",
            "ListMultipartUploads",
        ),
        "DeleteObject",
    } == set(proxy.calls)


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ("PutObject", "writing an object"),
        ("HeadObject", "reading an object"),
        ("CreateMultipartUpload", "beginning an upload"),
        ("AbortMultipartUpload", "aborting an upload"),
        ("ListMultipartUploads", "listing unfinished uploads"),
        ("DeleteObject", "removing an object"),
    ],
)
def test_a_check_names_the_right_that_is_missing(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, operation: str, words: str
) -> None:
    proxy.faults.append(Fault("status", operation))
    with pytest.raises(NotDelivered, match=words):
        archive.check()
    if operation != "DeleteObject":
        assert bucket.keys() == []


def test_a_check_does_not_wait_as_long_as_an_export(
    archive: S3Archive, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "CHECK_S", 0.5)
    proxy.faults.append(Fault("hang", times=9))
    with pytest.raises(NotDelivered, match=r"writing an object|removing an object"):
        archive.check()
    until(lambda: proxy.calls["PutObject"] > 0)
    assert proxy.calls["PutObject"] == 1


@pytest.mark.parametrize(
    "url",
    [
        *(
            "s3://",
            "s3://a",
            "s3://UPPER/x",
            "s3://bucket/../x",
            "s3://bucket/a//b",
            "s3://bucket/a b",
            "s3:bucket",
        ),
        *(
            "s3://key:secret@bucket/x",
            "s3://bucket:9000/x",
            "s3://bucket/x?versionId=1",
            "s3://bucket/x\n",
            "s3://b..c/x",
        ),
        *("s3://bucket/é", "s3://bucket/.hidden", "s3://bucket/" + "x/" * 600),
    ],
)
def test_urls_that_cannot_be_meant(url: str) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_ARCHIVE__URL"):
        open_archive(url)


@pytest.mark.parametrize(
    ("url", "root"), [("s3://bucket", "s3://bucket/"), ("s3://b.c-d/x/y/", "s3://b.c-d/x/y/")]
)
def test_urls_with_and_without_prefix(url: str, root: str) -> None:
    opened = open_archive(url)
    assert isinstance(opened, S3Archive)
    assert opened.bucket.root == root


def test_reading_stays_below_the_prefix(archive: S3Archive, bucket: Bucket) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key="secret", Body=b"secret")
    for url in (
        f"s3://{bucket.name}/secret",
        f"s3://{bucket.name}/exports/crawlsX",
        "s3://other/exports/crawls/x",
    ):
        with pytest.raises(NotDelivered, match="not below"):
            archive.open(url)


def test_an_answer_that_breaks_off_is_no_archive(
    archive: S3Archive, proxy: FaultProxy, large: Path
) -> None:
    result = store(archive, large)
    proxy.faults.append(Fault("cut", "GetObject"))
    with pytest.raises(NotDelivered, match="cannot be read"):
        b"".join(archive.open(result.url))

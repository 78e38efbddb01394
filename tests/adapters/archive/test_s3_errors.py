"""Errors of S3: their messages, what is left behind, and that the archive is complete or missing."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import os
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from temporalio import activity
from temporalio.exceptions import CancelledError
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.shared import alive
from crawler_lifecycle.adapters.archive.s3 import bucket as s3_bucket
from crawler_lifecycle.adapters.archive.s3 import upload
from crawler_lifecycle.adapters.archive.s3.archive import S3Archive
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.files import FileSource
from tests.adapters.archive.s3_case import KEY, OBJECT, proved, store, until
from tests.support.run_refs import run_ref
from tests.support.s3 import SECRET_KEY, Bucket, S3Server, use_aws
from tests.support.s3_faults import Fault, FaultProxy

pytestmark = pytest.mark.troubles


@pytest.fixture
def server(rclone_server: S3Server) -> S3Server:
    """Messages do not depend on the server; what is left behind is tested on both where possible."""
    return rclone_server


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that boto3 does not repeat calls."""
    monkeypatch.setattr(s3_bucket, "TRIES", 1)


@contextmanager
def unanswered(archive: S3Archive, operation: str, skip: int) -> Iterator[None]:
    """After a number of calls, an operation's calls get no response in time; all other calls have
    as much time as they need.
    """
    calls = itertools.count()

    def silent(request: Any, **_: object) -> None:
        if next(calls) >= skip:
            raise ReadTimeoutError(endpoint_url=request.url)

    events = archive.bucket.client.meta.events
    events.register(f"before-send.s3.{operation}", silent)
    yield
    events.unregister(f"before-send.s3.{operation}", silent)


def _prefix(bucket: Bucket) -> str:
    return f"s3://{bucket.name}/exports/crawls/"


# --- what is said ---------------------------------------------------------------------------------

TROUBLE = [
    ("AccessDenied", 403, "docs/archive.md"),
    ("ExpiredToken", 400, "expired"),
    ("InvalidAccessKeyId", 403, "AWS_ACCESS_KEY_ID"),
    ("SignatureDoesNotMatch", 403, "AWS_SECRET_ACCESS_KEY"),
    ("SlowDown", 503, "repeated later"),
    ("RequestTimeTooSkewed", 403, "clock"),
    ("QuotaExceeded", 403, "delete objects"),
]


@pytest.mark.parametrize(("code", "status", "fix"), TROUBLE, ids=[t[0] for t in TROUBLE])
@pytest.mark.usefixtures("once")
def test_trouble_is_said_with_its_code_and_fix(
    archive: S3Archive,
    bucket: Bucket,
    proxy: FaultProxy,
    folder: Path,
    code: str,
    status: int,
    fix: str,
) -> None:
    proxy.faults.append(Fault("status", "PutObject", times=99, status=status, code=code))
    with pytest.raises(NotDelivered, match=code) as caught:
        store(archive, folder)
    text = str(caught.value)
    assert fix in text
    assert "PutObject" in text
    assert text.startswith(_prefix(bucket))
    assert SECRET_KEY not in text
    assert "\n" not in text
    assert (bucket.keys(), bucket.unfinished()) == ([], [])


def test_a_bucket_that_is_not_there(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    use_aws(monkeypatch, server.url)
    archive = S3Archive("s3://no-such-bucket-here")
    for call in (lambda: store(archive, folder), archive.check):
        with pytest.raises(
            NotDelivered, match=r"NoSuchBucket.*create the bucket or correct LIFECYCLE_ARCHIVE__URL"
        ):
            call()


def test_a_server_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_aws(monkeypatch, "http://user:canary-password@127.0.0.1:9")
    monkeypatch.setattr(s3_bucket, "TRIES", 1)
    archive = S3Archive("s3://bucket")
    with pytest.raises(NotDelivered, match="AWS_ENDPOINT_URL") as caught:
        store(archive, folder)
    assert "canary-password" not in str(caught.value)


def test_no_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_aws(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(NotDelivered, match=r"NoCredentialsError.*AWS_ACCESS_KEY_ID"):
        store(S3Archive("s3://bucket"), folder)


def test_secrets_of_an_error_message_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError

    from crawler_lifecycle.adapters.archive.s3.errors import not_delivered

    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-session-token")
    said = "ASIAABCDEFGHIJKLMNOP with canary-session-token\nat https://me:pw@host/x " + "y" * 1000
    error = ClientError({"Error": {"Code": "Odd", "Message": said}}, "PutObject")
    text = str(not_delivered("s3://b/k", "the archive cannot be written", error))
    assert not any(secret in text for secret in ("ASIA", "canary", "me:pw", "\n"))
    assert text.startswith("s3://b/k: the archive cannot be written: Odd (PutObject): … with …")
    assert len(text) < 500


PARTED = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")

# --- what is left behind --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        *((op, kind) for op in PARTED for kind in ("slow_down", "hang")),
        *((op, kind) for op in PARTED[1:] for kind in ("reset", "wrong_etag", "damage")),
        *((op, kind) for op in PARTED for kind in ("garbage", "empty")),
    ],
)
@pytest.mark.parametrize(
    "server", ["rclone", pytest.param("moto", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.usefixtures("once")
def test_an_upload_that_fails_leaves_nothing_and_the_next_one_succeeds(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path, operation: str, kind: str
) -> None:
    skip = 2 if operation == "UploadPart" else 0
    if kind != "hang":
        proxy.faults.append(Fault(kind, operation, times=9, skip=skip))
    with (
        unanswered(archive, operation, skip) if kind == "hang" else nullcontext(),
        pytest.raises(NotDelivered, match=_prefix(bucket)[:10]),
    ):
        store(archive, large)
    proxy.calm()
    assert (bucket.keys(), bucket.unfinished()) == ([], [])
    proved(archive, bucket, large, store(archive, large))


@pytest.mark.parametrize("size", ["folder", "large"])
@pytest.mark.parametrize("kind", ["slow_down", "reset", "drop_answer"])
def test_one_lost_call_does_not_cost_the_upload(
    archive: S3Archive,
    bucket: Bucket,
    proxy: FaultProxy,
    folder: Path,
    kind: str,
    size: str,
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue(size)
    proxy.faults.append(Fault(kind, "UploadPart" if size == "large" else "PutObject"))
    proved(archive, bucket, folder, store(archive, folder))


@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.parametrize("size", ["folder", "large"])
def test_a_lost_answer_to_the_last_call_is_no_failure(
    archive: S3Archive,
    bucket: Bucket,
    proxy: FaultProxy,
    folder: Path,
    size: str,
    tries: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_bucket, "TRIES", tries)
    request.getfixturevalue(size)
    last = "CompleteMultipartUpload" if size == "large" else "PutObject"
    proxy.faults.append(Fault("drop_answer", last))
    result = store(archive, folder)
    assert proxy.calls[last] == (1 if tries == 1 else 2)
    proved(archive, bucket, folder, result)


@pytest.mark.usefixtures("once")
def test_the_former_archive_is_not_taken_for_ours(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path
) -> None:
    former = store(archive, large)
    (large / "more").write_text("more")
    proxy.faults.append(Fault("internal", "CompleteMultipartUpload", times=9))
    with pytest.raises(NotDelivered, match="InternalError"):
        store(archive, large)
    assert bucket.unfinished() == []
    (large / "more").unlink()
    proved(archive, bucket, large, former)


@pytest.mark.usefixtures("once")
def test_a_lost_answer_to_the_first_call_leaves_an_upload_that_the_next_try_removes(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path
) -> None:
    proxy.faults.append(Fault("drop_answer", "CreateMultipartUpload"))
    with pytest.raises(NotDelivered):
        store(archive, large)
    assert bucket.unfinished() == [OBJECT]
    proved(archive, bucket, large, store(archive, large))


def test_a_lost_answer_to_the_first_call_repeated_by_boto_leaves_nothing(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path
) -> None:
    proxy.faults.append(Fault("drop_answer", "CreateMultipartUpload"))
    proved(archive, bucket, large, store(archive, large))
    assert proxy.calls["CreateMultipartUpload"] == 2


@pytest.mark.usefixtures("once")
def test_an_upload_that_cannot_even_be_aborted_is_removed_by_the_next_try(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path
) -> None:
    proxy.faults += [
        Fault("reset", "UploadPart", skip=1),
        Fault("slow_down", "AbortMultipartUpload", times=9),
    ]
    with pytest.raises(NotDelivered):
        store(archive, large)
    assert bucket.unfinished() == [OBJECT]
    proxy.calm()
    proved(archive, bucket, large, store(archive, large))


@pytest.mark.usefixtures("once")
def test_an_upload_that_ends_while_a_run_is_removed_keeps_no_other_one(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy
) -> None:
    run = run_ref(7)
    for attempt in (1, 2, 3):
        bucket.client.create_multipart_upload(
            Bucket=bucket.name, Key=f"exports/crawls/{run}/{attempt}.zip"
        )
    proxy.faults.append(Fault("status", "AbortMultipartUpload", status=404, code="NoSuchUpload"))
    archive.remove(run)
    assert len(bucket.unfinished()) == 1, "the first one, of which we were told that it had ended"


@pytest.mark.parametrize("kind", ["garbage", "empty"])
@pytest.mark.usefixtures("once")
def test_a_success_that_stored_nothing_is_none(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, folder: Path, kind: str
) -> None:
    proxy.faults.append(Fault(kind, "PutObject"))
    with pytest.raises(NotDelivered, match=r"500 \(PutObject\)|AWS_ENDPOINT_URL"):
        store(archive, folder)
    assert bucket.keys() == []


def test_a_service_that_keeps_no_metadata(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, folder: Path
) -> None:
    proxy.faults.append(Fault("no_metadata", "HeadObject", times=9))
    proved(archive, bucket, folder, store(archive, folder))


@pytest.mark.parametrize("size", ["folder", "large"])
def test_an_object_that_is_not_what_was_sent_is_removed(
    archive: S3Archive,
    bucket: Bucket,
    proxy: FaultProxy,
    folder: Path,
    size: str,
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue(size)
    proxy.faults.append(
        Fault("wrong_etag", "CompleteMultipartUpload" if size == "large" else "PutObject")
    )
    with pytest.raises(NotDelivered, match=r"its ETag is not .*; the object was removed"):
        store(archive, folder)
    assert (bucket.keys(), bucket.unfinished()) == ([], [])


@pytest.mark.parametrize("name", ["x-amz-checksum-crc32", "x-amz-checksum-sha256"])
def test_a_checksum_that_the_service_has_is_compared(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path, name: str
) -> None:
    result = store(archive, large)
    content = bucket.read(OBJECT)
    right = base64.b64encode(
        zlib.crc32(content).to_bytes(4, "big")
        if name.endswith("crc32")
        else hashlib.sha256(content).digest()
    ).decode()
    proxy.faults.append(Fault("header", "HeadObject", code=f"{name}: {right}"))
    assert store(archive, large) == result
    proxy.faults.append(Fault("header", "HeadObject", code=f"{name}: {right[::-1]}-4"))
    assert store(archive, large) == result
    proxy.faults.append(Fault("header", "HeadObject", code=f"{name}: AAAA{right[4:]}"))
    with pytest.raises(NotDelivered, match="the object was removed"):
        store(archive, large)
    assert bucket.keys() == []


MD5, OTHER = "0123456789abcdef" * 2, "f" * 32


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ({"ETag": f'"{MD5}"'}, True),
        ({"ETag": MD5}, True),
        ({"ETag": f'"{OTHER}"'}, False),
        ({"ETag": f'"{OTHER}"', "ServerSideEncryption": "AES256"}, False),
        ({"ETag": f'"{OTHER}"', "ServerSideEncryption": "aws:kms"}, True),
        ({"ETag": f'"{OTHER}"', "ServerSideEncryption": "aws:kms:dsse"}, True),
        ({"ETag": f'"{OTHER}"', "SSECustomerAlgorithm": "AES256"}, True),
        ({"ETag": f'"{OTHER}-4"'}, True),
        ({"ETag": '"CMmxp6f+y4gDEAE="'}, True),
        ({}, True),
    ],
)
def test_an_etag_is_compared_where_it_is_a_digest(answer: dict[str, str], fits: bool) -> None:
    assert upload._fits(answer, MD5) is fits


@pytest.mark.usefixtures("once")
def test_without_the_right_to_list_uploads_archives_are_stored_all_the_same(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path
) -> None:
    proxy.faults.append(Fault("status", "ListMultipartUploads", times=9))
    proved(archive, bucket, large, store(archive, large))


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 40))]
)
def test_whatever_goes_wrong_the_archive_is_whole_or_not_there(
    archive: S3Archive, bucket: Bucket, proxy: FaultProxy, large: Path, seed: int, share: float
) -> None:
    proxy.seeded(seed, share)
    result: ExportResult | None = None
    for _ in range(6):
        try:
            result = store(archive, large)
            break
        except NotDelivered:
            for key in bucket.keys():  # noqa: SIM118
                assert zipfile.ZipFile(io.BytesIO(bucket.read(key))).testzip() is None
    proxy.calm()
    if result is not None and bucket.unfinished() == []:
        proved(archive, bucket, large, result)
    # Aborts can fail as well; a later try without faults leaves nothing of all that.
    proved(archive, bucket, large, store(archive, large))


# --- being stopped --------------------------------------------------------------------------------


class Cancelled(Exception):
    """The exception with which an activity is cancelled."""


@pytest.mark.parametrize("after", [0.0, 0.5, 1.0])
def test_cancelled_by_its_heartbeat_it_leaves_nothing(
    archive: S3Archive,
    bucket: Bucket,
    large: Path,
    after: float,
    part_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crawler_lifecycle.adapters.archive.zip.packing.BEAT_S", 0)

    def progress(_: int, size: int) -> None:
        if size >= after * 4 * part_size * 4 // 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        archive.store(KEY, [FileSource("", large)], {}, progress)
    assert (bucket.keys(), bucket.unfinished()) == ([], [])


def test_a_cancelled_activity_leaves_nothing(
    archive: S3Archive, bucket: Bucket, large: Path, part_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.adapters.archive.zip.packing.BEAT_S", 0)
    environment = ActivityEnvironment()
    begun, cancelled = threading.Event(), threading.Event()

    def cancel() -> None:
        begun.wait(60)
        until(lambda: bucket.unfinished() == [OBJECT])
        environment.cancel()
        cancelled.set()

    def progress(files: int, size: int) -> None:
        if size > 2 * part_size:  # the upload has begun and not ended
            begun.set()
            cancelled.wait(120)
        alive(files, size)

    @activity.defn(no_thread_cancel_exception=True)
    def export() -> None:
        archive.store(KEY, [FileSource("", large)], {}, progress)

    (large / "more").write_bytes(os.urandom(8 * 2**20))
    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(CancelledError):
        environment.run(export)
    thread.join()
    assert (bucket.keys(), bucket.unfinished()) == ([], [])


# --- others at work -------------------------------------------------------------------------------


def test_a_living_exporter_of_the_same_key_and_those_of_other_keys_are_left_alone(
    bucket: Bucket, proxy: FaultProxy, folder: Path
) -> None:
    # It may stall without failing.
    archive = S3Archive(f"s3://{bucket.name}/exports/crawls", quiet_s=60)
    client, where = bucket.client, {"Bucket": bucket.name, "Key": OBJECT}
    living = client.create_multipart_upload(**where)["UploadId"]
    others = [f"{OBJECT}.other", OBJECT.replace("/1/", "/2/"), OBJECT.replace("/7-", "/77-")]
    for key in others:
        client.create_multipart_upload(Bucket=bucket.name, Key=key)
    over = threading.Event()

    def live() -> None:
        number = 0
        while not over.wait(0.1):
            number += 1
            client.upload_part(**where, UploadId=living, PartNumber=number, Body=b"x" * 1000)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        result = store(archive, folder)
    finally:
        over.set()
        thread.join()
    assert bucket.keys() == [OBJECT]
    assert sorted(bucket.unfinished()) == sorted([OBJECT, *others])
    client.abort_multipart_upload(**where, UploadId=living)
    assert result.files == 2


def test_two_exporters_of_one_key_at_once(
    bucket: Bucket, server: S3Server, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_aws(monkeypatch, server.url)
    archives = [S3Archive(f"s3://{bucket.name}/exports/crawls", quiet_s=60) for _ in range(2)]
    results: list[ExportResult] = []
    refused: list[str] = []

    def export(archive: S3Archive) -> None:
        try:
            results.append(store(archive, large))
        except NotDelivered as error:
            refused.append(str(error))

    threads = [threading.Thread(target=export, args=(archive,)) for archive in archives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results
    assert all("at the same time" in text for text in refused)
    proved(archives[0], bucket, large, results[0])

"""Clearing object storage removes bundles of attempts that have ended, and nothing else."""

from __future__ import annotations

import pytest

from crawler_lifecycle.adapters.archive.bundles import S3Bundles
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.names import bundle_key
from tests.support.run_refs import run_ref
from tests.support.s3 import Bucket
from tests.support.s3_faults import Fault, FaultProxy

PREFIX = "files/tasks/"
SEVEN = str(run_ref(7))


@pytest.fixture
def place(bucket: Bucket, proxy: FaultProxy) -> S3Bundles:
    return S3Bundles(f"s3://{bucket.name}/{PREFIX}")


def put(bucket: Bucket, *keys: str) -> None:
    for key in keys:
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=b"x")


def uploaded(bucket: Bucket, run_id: int, *, tasks: int = 1, attempt: int = 1) -> None:
    for index in range(tasks):
        names = ("part-00000", "part-00001", "bundle.json")
        put(bucket, *(PREFIX + bundle_key(run_ref(run_id), index, attempt, name) for name in names))


def test_it_finds_runs_and_whatever_else_lies_there(bucket: Bucket, place: S3Bundles) -> None:
    assert place.runs() == set()
    uploaded(bucket, 7)
    uploaded(bucket, 70)
    put(bucket, f"{PREFIX}notes/today.txt", f"{PREFIX}readme", "files/other/8/0/1/part-00000")
    assert place.runs() == {SEVEN, str(run_ref(70)), "notes"}


def test_one_run_goes_and_everything_else_stays(bucket: Bucket, place: S3Bundles) -> None:
    put(
        bucket,
        "archive/7/1/supporting-files.zip",
        f"{PREFIX}readme",
        f"{PREFIX}{SEVEN}/by-hand.txt",
        f"{PREFIX}{SEVEN}/0/x/y",
    )
    uploaded(bucket, 70)
    before = bucket.keys()
    uploaded(bucket, 7, tasks=3)
    place.put_aside(run_ref(7))
    place.remove(run_ref(7), 1)
    place.remove(run_ref(7), 1)
    assert bucket.keys() == before
    assert place.finish() == []


def test_a_later_attempt_stays(bucket: Bucket, place: S3Bundles) -> None:
    """The run was resumed during the removal."""
    uploaded(bucket, 7, attempt=10)
    before = bucket.keys()
    uploaded(bucket, 7, attempt=1)
    uploaded(bucket, 7, attempt=9)
    place.remove(run_ref(7), 9)
    assert bucket.keys() == before


def test_more_than_one_page(
    bucket: Bucket, place: S3Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service returns at most a thousand at once; here, two."""
    for run_id in (7, 8, 9):
        uploaded(bucket, run_id, tasks=2)
    real = place.bucket.client
    few = real.list_objects_v2
    monkeypatch.setattr(real, "list_objects_v2", lambda **options: few(**options, MaxKeys=2))
    assert place.runs() == {str(run_ref(n)) for n in (7, 8, 9)}
    place.remove(run_ref(8), 1)
    assert len(bucket.keys()) == 12
    assert place.runs() == {SEVEN, str(run_ref(9))}


def test_a_refusal_is_told_and_the_next_call_ends_it(
    bucket: Bucket, place: S3Bundles, proxy: FaultProxy
) -> None:
    uploaded(bucket, 7, tasks=2)
    proxy.faults = [Fault("status", "DeleteObject", times=1, skip=2)]
    with pytest.raises(NotDelivered, match="removing an object: AccessDenied") as caught:
        place.remove(run_ref(7), 1)
    assert str(caught.value).endswith(
        "give the credentials the permissions that docs/kubernetes-files.md lists"
    )
    place.remove(run_ref(7), 1)
    assert bucket.keys() == []
    proxy.faults = [Fault("status", "GET bucket")]
    with pytest.raises(NotDelivered, match="listing runs: AccessDenied"):
        place.runs()


def test_the_setting_is_named() -> None:
    with pytest.raises(
        InvalidRequest, match="LIFECYCLE_CLUSTER__FILES_URL: 'file:///x' is not allowed"
    ):
        S3Bundles("file:///x")

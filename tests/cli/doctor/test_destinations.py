"""The doctor on destinations of supporting files: each reason why they cannot be used is named with
its fix.
"""

from __future__ import annotations

from typing import Any

import pytest

from crawler_lifecycle.adapters.archive.bundles import PROBE
from crawler_lifecycle.cli.doctor.checks import component, destinations
from crawler_lifecycle.cli.doctor.report import Context, Line
from crawler_lifecycle.cli.doctor.sources import Sources
from crawler_lifecycle.cli.doctor.verb import _checks
from crawler_lifecycle.redaction import Redactor
from crawler_lifecycle.settings import Settings
from tests.support.s3 import SECRET_KEY, Bucket, S3Server, use_aws
from tests.support.s3_faults import Fault, FaultProxy


@pytest.fixture
def bucket(server: S3Server, proxy: FaultProxy) -> Bucket:
    return server.bucket()


@pytest.fixture
def who(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """The component in whose pod the doctor runs."""
    mine: dict[str, str | None] = {"name": None}
    monkeypatch.setattr(component, "component", lambda: mine["name"])
    return mine


def look(**cluster: Any) -> list[tuple[str, str]]:
    lines = found(**cluster)
    assert all(line.check == "files" for line in lines)
    assert all(line.fix for line in lines if line.level != "ok")
    assert SECRET_KEY not in str(lines)
    return [(line.level, line.text) for line in lines]


def found(**cluster: Any) -> list[Line]:
    known = Settings.model_validate({"cluster": {"kind": "kubernetes", **cluster}})
    return list(destinations.check_files(Context(known, Sources({}), Redactor(set()))))


def test_it_is_one_of_the_checks() -> None:
    of = {
        kind: Settings.model_validate({"cluster": {"kind": kind}})
        for kind in ("local", "kubernetes")
    }
    looks = {kind: [check.look for check in _checks(one)] for kind, one in of.items()}
    assert (
        destinations.check_files in looks["kubernetes"],
        destinations.check_files in looks["local"],
    ) == (
        True,
        False,
    )
    assert {name for name, uses in component.USES.items() if destinations.FILES in uses} == {
        destinations.SIGNS,
        destinations.READS,
    }


def test_no_place_at_all(who: dict[str, str | None]) -> None:
    assert look() == [
        ("warn", "supporting files are lost with their pods: no storage is set for them")
    ]


# --- object storage -------------------------------------------------------------------------------


def test_a_bucket_with_every_right(bucket: Bucket, who: dict[str, str | None]) -> None:
    url = f"s3://{bucket.name}/tasks"
    assert look(files_url=url) == [("ok", f"{url}/ can be written to, read, cleared")]
    assert bucket.keys() == [], "the probe is removed again"


@pytest.mark.parametrize(
    ("mine", "said", "asked"),
    [
        ("gateway", "written to by gateway", {"PutObject", "DeleteObject"}),
        ("worker-export", "read by worker-export", {"GET bucket", "GetObject"}),
    ],
)
def test_in_a_pod_what_its_component_does(
    bucket: Bucket,
    proxy: FaultProxy,
    who: dict[str, str | None],
    mine: str,
    said: str,
    asked: set[str],
) -> None:
    who["name"] = mine
    assert look(files_url=f"s3://{bucket.name}") == [("ok", f"s3://{bucket.name}/ can be {said}")]
    assert set(proxy.calls) == asked


def test_a_gateway_that_may_not_remove_leaves_one_probe_however_often(
    bucket: Bucket, proxy: FaultProxy, who: dict[str, str | None]
) -> None:
    who["name"] = "gateway"
    proxy.faults = [Fault("status", "DeleteObject", times=9)]
    for _ in range(2):
        assert [level for level, _ in look(files_url=f"s3://{bucket.name}/tasks")] == ["ok"]
    assert bucket.keys() == [f"tasks/{PROBE}"]


@pytest.mark.parametrize(
    ("operation", "level", "said"),
    [
        ("PutObject", "bad", "writing an object: AccessDenied (PutObject)"),
        ("GET bucket", "bad", "listing objects: AccessDenied (ListObjectsV2)"),
        ("GetObject", "bad", "reading an object: AccessDenied (GetObject)"),
        ("DeleteObject", "warn", "removing an object: AccessDenied (DeleteObject)"),
    ],
)
def test_each_missing_right_is_named(
    bucket: Bucket,
    proxy: FaultProxy,
    who: dict[str, str | None],
    operation: str,
    level: str,
    said: str,
) -> None:
    proxy.faults = [Fault("status", operation, times=9)]
    wrong = [line for line in found(files_url=f"s3://{bucket.name}/tasks") if line.level != "ok"]
    assert [line.level for line in wrong] == [level]
    assert said in wrong[0].text
    assert (
        wrong[0].fix == "give the credentials the permissions that docs/kubernetes-files.md lists"
    )


def test_there_is_no_such_bucket(proxy: FaultProxy, who: dict[str, str | None]) -> None:
    lines = found(files_url="s3://nobody-made-it/tasks")
    assert {line.level for line in lines} <= {"bad", "warn"}
    assert "NoSuchBucket" in lines[0].text
    assert lines[0].fix == "create the bucket or correct LIFECYCLE_CLUSTER__FILES_URL"


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, who: dict[str, str | None]) -> None:
    use_aws(monkeypatch, "http://127.0.0.1:9")
    lines = found(files_url="s3://bucket/tasks")
    assert "EndpointConnectionError" in lines[0].text
    assert lines[0].fix == "check AWS_ENDPOINT_URL, AWS_REGION and the network"


def test_a_url_that_is_none(who: dict[str, str | None]) -> None:
    ((level, text),) = look(files_url="gs://bucket")
    assert (level, text) == ("bad", "LIFECYCLE_CLUSTER__FILES_URL: 'gs://bucket' is not allowed")


# --- shared volume --------------------------------------------------------------------------------


def test_a_volume_is_tried_by_the_exports_alone() -> None:
    assert look(volume_claim="files") == []


def test_with_both_the_exports_read_from_the_bucket(
    bucket: Bucket, who: dict[str, str | None]
) -> None:
    who["name"] = "worker-export"
    both = {"files_url": f"s3://{bucket.name}", "volume_claim": "files"}
    assert [level for level, _ in look(**both)] == ["ok"]

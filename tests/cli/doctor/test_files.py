"""The doctor on the places of supporting files: each way of not being able to use them is named with its cure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.adapters.archive.bundles import PROBE
from crawler_lifecycle.cli.doctor.checks import component, files
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
    """The component in whose pod we are."""
    mine: dict[str, str | None] = {"name": None}
    monkeypatch.setattr(component, "component", lambda: mine["name"])
    return mine


def look(**cluster: Any) -> list[tuple[str, str]]:
    lines = found(**cluster)
    assert all(line.check == "files" for line in lines)
    assert all(line.cure for line in lines if line.level != "ok")
    assert SECRET_KEY not in str(lines)
    return [(line.level, line.text) for line in lines]


def found(**cluster: Any) -> list[Line]:
    known = Settings.model_validate({"cluster": {"kind": "kubernetes", **cluster}})
    return list(files.check_files(Context(known, Sources({}), Redactor(set()))))


def test_it_is_one_of_the_checks() -> None:
    of = {kind: Settings.model_validate({"cluster": {"kind": kind}}) for kind in ("local", "kubernetes")}
    looks = {kind: [check.look for check in _checks(one)] for kind, one in of.items()}
    assert (files.check_files in looks["kubernetes"], files.check_files in looks["local"]) == (True, False)
    assert {name for name, uses in component.USES.items() if files.CHECK in uses} == {files.SIGNS, files.READS}


def test_no_place_at_all(who: dict[str, str | None]) -> None:
    assert look() == [("warn", "supporting files are lost with their pods: no storage is set for them")]


# --- object storage ------------------------------------------------------------------------------------------------


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
    bucket: Bucket, proxy: FaultProxy, who: dict[str, str | None], mine: str, said: str, asked: set[str]
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
    bucket: Bucket, proxy: FaultProxy, who: dict[str, str | None], operation: str, level: str, said: str
) -> None:
    proxy.faults = [Fault("status", operation, times=9)]
    wrong = [line for line in found(files_url=f"s3://{bucket.name}/tasks") if line.level != "ok"]
    assert [line.level for line in wrong] == [level]
    assert said in wrong[0].text
    assert wrong[0].cure == "give the credentials the permissions that docs/kubernetes-files.md lists"


def test_there_is_no_such_bucket(proxy: FaultProxy, who: dict[str, str | None]) -> None:
    lines = found(files_url="s3://nobody-made-it/tasks")
    assert {line.level for line in lines} <= {"bad", "warn"}
    assert "NoSuchBucket" in lines[0].text
    assert lines[0].cure == "create the bucket or correct LIFECYCLE_CLUSTER__FILES_URL"


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, who: dict[str, str | None]) -> None:
    use_aws(monkeypatch, "http://127.0.0.1:9")
    lines = found(files_url="s3://bucket/tasks")
    assert "EndpointConnectionError" in lines[0].text
    assert lines[0].cure == "check AWS_ENDPOINT_URL, AWS_REGION and the network"


def test_a_url_that_is_none(who: dict[str, str | None]) -> None:
    ((level, text),) = look(files_url="gs://bucket")
    assert (level, text) == ("bad", "LIFECYCLE_CLUSTER__FILES_URL: 'gs://bucket' is not allowed")


# --- shared volume -------------------------------------------------------------------------------------------------


def on_volume(tmp_path: Path, *, path: Path | None = None) -> list[tuple[str, str]]:
    return look(volume_claim="files", volume_path=path or tmp_path)


def test_a_volume_that_is_there(tmp_path: Path, who: dict[str, str | None]) -> None:
    (tmp_path / "tasks/7/0/1/files").mkdir(parents=True)
    assert on_volume(tmp_path) == [("ok", f"the shared volume at {tmp_path} can be read and written to")]
    who["name"] = "worker-export"
    assert [level for level, _ in on_volume(tmp_path)] == ["ok"]
    who["name"] = "gateway"
    assert on_volume(tmp_path) == [], "it has no volume"


def test_a_volume_that_is_mounted_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: dict[str, str | None]
) -> None:
    (tmp_path / "tasks").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    ((level, text),) = on_volume(tmp_path)
    assert (level, text.partition(" can be ")[2]) == ("ok", "read but not written to, which is enough")


def test_an_empty_folder_where_nothing_is_mounted(tmp_path: Path, who: dict[str, str | None]) -> None:
    ((level, text),) = on_volume(tmp_path)
    assert (level, text) == ("bad", f"{tmp_path} has no folder 'tasks', and nothing is mounted there")


@pytest.mark.parametrize(("mine", "level"), [(None, "warn"), ("worker-export", "bad")])
def test_no_folder(tmp_path: Path, who: dict[str, str | None], mine: str | None, level: str) -> None:
    who["name"] = mine
    assert [one for one, _ in on_volume(tmp_path, path=tmp_path / "away")] == [level]


@pytest.mark.parametrize("at", ["tasks", "tasks/7", "tasks/7/0/1/files"])
def test_files_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: dict[str, str | None], at: str
) -> None:
    (tmp_path / "tasks/7/0/1/files").mkdir(parents=True)
    really = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path) == tmp_path / at:
            raise PermissionError(13, "Permission denied")
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    ((level, text),) = on_volume(tmp_path)
    assert (level, text) == (
        "bad",
        f"files on the shared volume cannot be read: {tmp_path / at}: permission denied",
    )


def test_a_claim_without_its_place(who: dict[str, str | None]) -> None:
    assert look(volume_claim="files")[0][0] == "bad"


def test_with_both_the_exports_read_from_the_bucket(tmp_path: Path, bucket: Bucket, who: dict[str, str | None]) -> None:
    both = {"files_url": f"s3://{bucket.name}", "volume_claim": "files", "volume_path": tmp_path / "away"}
    assert [level for level, _ in look(**both)] == ["ok", "warn"]
    who["name"] = "worker-export"
    assert [level for level, _ in look(**both)] == ["ok"]

"""``crawlctl cluster release`` first lists, then releases what waits, and reports what it could not
do.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.cli.admin import cluster
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.clusters.kubernetes import labels
from tests.cli.cli_support import NOW, Crawlctl, Result
from tests.support.kube_api import Answer, FakeApiServer, LostAnswer, Silence, throttled
from tests.support.kube_api.store import PODS

OTHER = "example.com/other"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApiServer]:
    with FakeApiServer(tmp_path) as server:
        yield server


@pytest.fixture
def release(api: FakeApiServer, crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call the verb on the fake server, without its pauses."""
    monkeypatch.setenv("LIFECYCLE_CLUSTER__KUBECONFIG", str(api.kubeconfig()))
    monkeypatch.setattr(cluster, "PAUSE_S", 0.01)

    def call(*words: str) -> Result:
        return crawlctl("cluster", "release", *words)

    return call


def pod(api: FakeApiServer, name: str, *, run: int = 7, phase: str = "Succeeded", finalizers: list[str] | None = None,
        labelled: bool = True, deleted: bool = False) -> None:  # fmt: skip
    """A pod as the cluster shows it, which ended an hour ago unless it is running."""
    ended = phase in ("Succeeded", "Failed")
    at = (NOW - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    state = (
        {"terminated": {"exitCode": 0, "finishedAt": at}}
        if ended
        else {"running": {"startedAt": at}}
    )
    own = {
        labels.MANAGED_BY: labels.MANAGER,
        labels.RUN: str(run),
        labels.TASK: "0",
        labels.ATTEMPT: "1",
    }
    meta: dict[str, Any] = {"name": name, "namespace": "crawls", "labels": own if labelled else {}}
    meta["finalizers"] = [labels.FINALIZER] if finalizers is None else finalizers
    if deleted:
        meta |= {"deletionTimestamp": at, "deletionGracePeriodSeconds": 30}
    status = {"phase": phase, "containerStatuses": [{"name": labels.CONTAINER, "state": state}]}
    api.store.create(
        PODS, ("crawls", name), {"metadata": meta, "spec": {"nodeName": "n1"}, "status": status}
    )


def finalizers(api: FakeApiServer, name: str) -> list[str]:
    return list(api.store.get(PODS, ("crawls", name))["metadata"].get("finalizers") or [])


def test_without_yes_it_tells_and_changes_nothing(api: FakeApiServer, release: Any) -> None:
    pod(api, "ended")
    pod(api, "runs", phase="Running")
    done = release()
    assert done.code == Exit.DONE
    assert done.out.splitlines()[0].split() == ["POD", "RUN", "TASK", "STATE", "RELEASE"]
    assert done.out.splitlines()[1].split() == [
        "ended",
        "7",
        "0",
        "Succeeded,",
        "ended",
        "1",
        "h",
        "ago",
        "-",
    ]
    assert "runs" not in done.out, "it still executes, and its end will be evidence"
    assert "nothing was changed" in done.err
    assert "next: crawlctl cluster release --yes" in done.err
    assert api.count("PATCH") == 0


def test_it_lets_go_of_what_ended_and_leaves_the_finalizers_of_others(
    api: FakeApiServer, release: Any
) -> None:
    pod(api, "ended", finalizers=[OTHER, labels.FINALIZER])
    pod(api, "failed", phase="Failed")
    pod(api, "runs", phase="Running")
    pod(api, "free", finalizers=[OTHER])
    done = release("--yes", "-o", "json")
    assert done.code == Exit.DONE
    assert (done.json["released"], done.json["failed"]) == (2, 0)
    assert [row["pod"] for row in done.json["pods"]] == ["ended", "failed"]
    assert finalizers(api, "ended") == [OTHER]
    assert finalizers(api, "runs") == [labels.FINALIZER]
    assert finalizers(api, "free") == [OTHER]


def test_a_pod_that_was_only_waiting_for_us_is_gone_afterwards(
    api: FakeApiServer, release: Any
) -> None:
    pod(api, "deleted", phase="Running", deleted=True)
    assert release("--yes").code == Exit.DONE
    assert [
        p
        for p in api.store.find(PODS)
        if labels.FINALIZER in (p["metadata"].get("finalizers") or [])
    ] == []


def test_all_takes_what_executes_and_warns_of_it(api: FakeApiServer, release: Any) -> None:
    pod(api, "runs", phase="Running")
    told = release("--all")
    assert "1 of them are still executing: a release may lose their results" in told.err
    assert "next: crawlctl cluster release --all --yes" in told.err
    assert release("--all", "--yes").code == Exit.DONE
    assert finalizers(api, "runs") == []


def test_one_run_alone(api: FakeApiServer, release: Any) -> None:
    pod(api, "seven", run=7, phase="Running")
    pod(api, "eight", run=8)
    assert release("--run", "7", "--yes", "-o", "name").out == "seven\n"
    assert finalizers(api, "eight") == [labels.FINALIZER]
    assert release("--run", "7", "--all").code == Exit.USAGE


def test_labels_that_somebody_took_away_hide_no_pod(api: FakeApiServer, release: Any) -> None:
    pod(api, "bare", labelled=False)
    assert release("--yes", "-o", "json").json["pods"][0]["run_id"] is None
    assert finalizers(api, "bare") == []


def test_many_pods_are_read_in_pages(
    api: FakeApiServer, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PROGRESS_EVERY", 400)
    for n in range(620):
        pod(api, f"pod-{n:04}", run=n % 5)
    done = release("--yes", "-o", "json")
    assert done.json["released"] == 620
    assert api.count("GET", r"/pods\?.*continue=") >= 1
    assert "400 of 620 pods …" in done.err
    assert "released 620, already gone 0, left 0" in done.err


def test_twice_is_no_error(api: FakeApiServer, release: Any) -> None:
    pod(api, "ended")
    assert release("--yes").code == Exit.DONE
    again = release("--yes")
    assert again.code == Exit.DONE
    assert "no pod in crawls is waiting for our finalizer" in again.err


def test_a_namespace_that_is_not_there_is_no_empty_success(
    api: FakeApiServer, release: Any
) -> None:
    done = release("--namespace", "night", "--yes")
    assert done.code == Exit.NOT_FOUND
    assert "the cluster has no namespace 'night'" in done.err


def test_a_pod_that_is_gone_meanwhile_and_another_under_its_name(
    api: FakeApiServer, release: Any
) -> None:
    pod(api, "ended")
    api.faults.add("PATCH", "/pods/ended", Answer(404, 'pods "ended" not found'))
    assert release("--yes", "-o", "json").json["pods"][0]["released"] is False
    api.faults.add(
        "PATCH", "/pods/ended", Answer(409, "the UID in the precondition is another one")
    )
    done = release("--yes")
    assert "already gone 1" in done.err
    assert finalizers(api, "ended") == [labels.FINALIZER]


def test_what_the_server_asks_to_wait_for_is_waited_for(api: FakeApiServer, release: Any) -> None:
    pod(api, "ended")
    api.faults.add("PATCH", "/pods/ended", throttled(None), times=2)
    api.faults.add("PATCH", "/pods/ended", LostAnswer(), nth=1)
    done = release("--yes")
    assert done.code == Exit.DONE
    assert finalizers(api, "ended") == []


def test_one_that_cannot_be_released_keeps_none_of_the_others(
    api: FakeApiServer, release: Any
) -> None:
    pod(api, "first")
    pod(api, "second")
    api.faults.add("PATCH", "/pods/first", Answer(500, "etcd is away"), times=None)
    done = release("--yes")
    assert done.code == Exit.ERROR
    assert "released 1, already gone 0, left 1" in done.err
    assert "etcd is away" in done.out
    assert "next: crawlctl cluster release --yes" in done.err
    assert finalizers(api, "second") == []


def test_a_missing_right_is_named(api: FakeApiServer, release: Any) -> None:
    pod(api, "ended")
    api.deny("patch", "pods")
    done = release("--yes")
    assert done.code == Exit.NOT_AUTHORISED
    assert "needs permission to patch pods ended in namespace crawls" in " ".join(done.out.split())
    assert api.count("PATCH") == 1, "a right does not come back by asking again"
    api.deny("list", "pods")
    listed = release()
    assert listed.code == Exit.NOT_AUTHORISED
    assert "needs permission to list pods in namespace crawls" in listed.err


def test_a_cluster_that_does_not_answer(
    api: FakeApiServer, release: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIFECYCLE_CLUSTER__READ_TIMEOUT_S", "0.2")
    api.faults.add("GET", r"/pods", Silence(2.0), times=None)
    done = release("--yes")
    assert done.code == Exit.UNREACHABLE
    assert "the cluster does not respond" in done.err
    missing = release("--kubeconfig", str(tmp_path / "none"))
    assert missing.code == Exit.USAGE
    assert "is not a file" in missing.err


def test_times_are_told_in_utc(api: FakeApiServer, release: Any) -> None:
    pod(api, "ended")
    ended = datetime.fromisoformat(release("-o", "json").json["pods"][0]["ended_at"])
    assert ended == NOW - timedelta(hours=1)
    assert ended.tzinfo == UTC

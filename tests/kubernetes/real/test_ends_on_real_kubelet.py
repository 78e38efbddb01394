"""Every way in which a container can end, each with a real one, and what the database finally says
about it.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from tests.e2e.harness import moment, until
from tests.kubernetes.real.real_harness import CATALOGUE, NO_IMAGE, RealHarness

Row = dict[str, Any]
#: Without our runner, where the test with it runs in CI, and a recording is also read.
BARE = pytest.param("bare", marks=pytest.mark.slow)


def proved(harness: RealHarness, run_id: int) -> tuple[Row, Row, Row]:
    """Return run and task as the database has them after the end, and the kubelet's report of the
    container.

    Whatever the end was, it is recorded once, belongs to that container, and the cluster's objects
    were released.
    """
    run = harness.until_ended(run_id)
    task = harness.task(run_id)
    [job] = harness.objects(run_id, "jobs")
    assert task["cluster_uid"] == job["metadata"]["uid"]
    pod = harness.pod(run_id)
    [status] = pod["status"]["containerStatuses"]
    ended: Row = status["state"]["terminated"]
    assert task["exit_code"] == ended["exitCode"]
    assert task["node"] == pod["spec"]["nodeName"]
    digest = harness.query("SELECT code_digest FROM task_history WHERE run_id = ?", run_id)
    assert digest == [(status["imageID"][-len("sha256:") - 64 :],)], status["imageID"]
    sql = "SELECT ended_at FROM task_history WHERE run_id = ?"
    assert (
        abs(
            (moment(harness.query(sql, run_id)[0][0]) - moment(ended["finishedAt"])).total_seconds()
        )
        <= 1
    )
    twice = "SELECT to_status FROM status_transition WHERE run_id = ? AND task_id IS NOT NULL"
    assert harness.query(f"{twice} GROUP BY task_id, to_status HAVING COUNT(*) > 1", run_id) == []
    harness.until_settled(run_id)
    return run, task, ended


def test_exit_0(harness: RealHarness) -> None:
    run_id = harness.begin(do="finish")
    run, task, ended = proved(harness, run_id)
    assert (run["status"], run["outcome"]) == ("COMPLETED", "finished")
    assert (task["status"], task["outcome"], task["exit_code"], task["pages"]) == (
        "SUCCEEDED",
        "finished",
        0,
        3,
    )
    assert json.loads(ended["message"])["finish_reason"] == "finished"
    assert "three pages, two of them with something on" in harness.gateway.logs(run_id)
    kinds = harness.query("SELECT kind FROM correction WHERE run_id = ?", run_id)
    assert set(kinds) <= {("late",)}, "on a busy machine it may be found late"


@pytest.mark.parametrize(("crawler", "code"), [("actor", 7), ("bare", 42)])
def test_exit_n(harness: RealHarness, crawler: str, code: int) -> None:
    run, task, ended = proved(harness, harness.begin(crawler, do="finish", code=code))
    assert (run["status"], run["outcome"]) == ("FAILED", "failed")
    assert (task["status"], task["outcome"], task["exit_code"]) == ("FAILED", "failed", code)
    assert f"exit {code}" in task["cause"]
    # Without a runner, a node keeps the end of the log.
    assert ("three pages" in ended["message"]) == (crawler == "bare")


def test_killed_for_memory(harness: RealHarness) -> None:
    """Process 1 of the container itself is killed."""
    run, task, ended = proved(harness, harness.begin("bare", do="eat"))
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert (run["status"], run["outcome"]) == ("FAILED", "killed by oom")
    assert (task["outcome"], task["exit_code"], task["exit_signal"]) == ("killed by oom", 137, 9)
    assert "memory" in task["cause"]


@pytest.mark.parametrize("code", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_a_child_killed_for_memory(harness: RealHarness, code: int) -> None:
    """If the main process exits with 0, the pod is Succeeded and its Job Complete, but this is no
    success.
    """
    run_id = harness.begin("bare", do="child eats", code=code)
    run, task, ended = proved(harness, run_id)
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", code)
    # Which follows the end of the container a moment later.
    phase = "Failed" if code else "Succeeded"
    until(lambda: harness.pod(run_id)["status"]["phase"] == phase, f"a pod that has {phase}")
    assert (run["status"], task["outcome"], task["exit_code"]) == ("FAILED", "killed by oom", code)


def test_a_crawler_below_the_runner_is_killed_for_memory(harness: RealHarness) -> None:
    run, task, ended = proved(harness, harness.begin(do="eat"))
    assert ended["reason"] == "OOMKilled"
    assert (run["status"], task["status"], task["outcome"]) == ("FAILED", "FAILED", "killed by oom")


def obeyed(harness: RealHarness) -> int:
    """Return a run that was stopped normally after it had printed something."""
    run_id = harness.begin(do="obey")
    harness.until_running(run_id)
    until(lambda: "waiting" in harness.gateway.logs(run_id), "a line of its log")
    harness.gateway.stop(run_id, reason="enough")
    harness.until_ended(run_id)
    return run_id


def test_sigterm_handled(harness: RealHarness) -> None:
    """Its log is saved before the Job is deleted: output after the signal disappears with its
    container.

    A node does not wait for readers, and a stop waits for a node for only two seconds. A busy node
    may miss them, and is asked again.
    """
    run_id = obeyed(harness)
    run, task = harness.run_row(run_id), harness.task(run_id)
    assert (run["status"], run["outcome"]) == ("FAILED", "cancelled")
    assert (task["status"], task["outcome"], task["exit_code"], task["pages"]) == (
        "CANCELLED",
        "cancelled",
        11,
        7,
    )
    until(
        lambda: not harness.objects(run_id, "pods") and not harness.objects(run_id, "jobs"),
        "nothing left to hold",
    )
    assert any(
        "waiting" in harness.gateway.logs(one or obeyed(harness)) for one in (run_id, 0, 0, 0, 0)
    )


@pytest.mark.parametrize("crawler", ["actor", BARE])
def test_sigterm_ignored(harness: RealHarness, crawler: str) -> None:
    """With the runner, it reports how it ended; without, nobody is left to report anything."""
    run_id = harness.begin(crawler, do="ignore", limits={"stop_grace_s": 2})
    harness.until_running(run_id)
    harness.gateway.stop(run_id, reason="enough")
    run = harness.until_ended(run_id)
    task = harness.task(run_id)
    assert (run["status"], run["outcome"], task["status"]) == ("FAILED", "cancelled", "CANCELLED")
    assert (task["exit_code"], task["exit_signal"]) == ((13, 9) if crawler == "actor" else (137, 9))
    assert processes_with(f"CRAWL_RUN_ID={run_id}", harness) == []


def test_a_forced_stop(harness: RealHarness) -> None:
    run_id = harness.begin(do="ignore", limits={"stop_grace_s": 600})
    harness.until_running(run_id)
    harness.gateway.stop(run_id, force=True, reason="now")
    run = harness.until_ended(run_id)
    task = harness.task(run_id)
    assert (run["status"], run["outcome"], task["status"]) == ("FAILED", "cancelled", "CANCELLED")
    assert processes_with(f"CRAWL_RUN_ID={run_id}", harness) == []


@pytest.mark.parametrize("crawler", [pytest.param("actor", marks=pytest.mark.slow), "bare"])
def test_a_stop_becomes_a_forced_one_where_nobody_can_tell_the_pod(
    harness: RealHarness, crawler: str
) -> None:
    """A kubelet keeps the grace period with which it began.

    The run says so instead of calling the node silent. Pods can reach no gateway here;
    test_service_pods covers how our runner learns of the force from one.
    """
    run_id = harness.begin(crawler, do="ignore", limits={"stop_grace_s": 20})
    harness.until_running(run_id)
    pod = harness.pod(run_id)
    own = pod["spec"]["terminationGracePeriodSeconds"]
    harness.gateway.stop(run_id, reason="enough")
    name = pod["metadata"]["name"]
    until(
        lambda: harness.cluster.admin.is_killing(harness.namespace, name),
        "the node's beginning to end the pod",
    )
    harness.gateway.stop(run_id, force=True, reason="now")
    words = f"if its node had already begun its grace of {own} s"
    until(lambda: words in str(harness.task(run_id)["reason"]), "the reason why it takes so long")
    assert harness.status(run_id) == "STOPPING"
    assert processes_with(f"CRAWL_RUN_ID={run_id}", harness) != []
    run, task = harness.until_ended(run_id), harness.task(run_id)
    assert (run["status"], run["outcome"], task["status"]) == ("FAILED", "cancelled", "CANCELLED")
    assert (task["exit_code"], task["exit_signal"]) == ((13, 9) if crawler == "actor" else (137, 9))


@pytest.mark.slow
def test_killed_from_outside(harness: RealHarness) -> None:
    run_id = harness.begin("bare", do="wait")
    harness.until_running(run_id)
    for pid in processes_with(f"CRAWL_RUN_ID={run_id}", harness):
        os.kill(pid, signal.SIGKILL)
    run, task, ended = proved(harness, run_id)
    assert (ended["reason"], ended["exitCode"]) == ("Error", 137)
    assert (run["status"], run["outcome"]) == ("FAILED", "failed")
    assert (task["outcome"], task["exit_code"], task["exit_signal"]) == ("failed", 137, 9)


@pytest.mark.parametrize("crawler", ["actor", BARE])
def test_a_pod_deleted_by_a_person(harness: RealHarness, crawler: str) -> None:
    """Even a pod that exits normally and reports this was ended from outside, and was considered
    executing meanwhile.
    """
    run_id = harness.begin(crawler, do="obey")
    harness.until_running(run_id)
    harness.cluster.admin.delete(harness.path(harness.pod(run_id)))
    run, task = proved_after_deletion(harness, run_id)
    assert (run["status"], run["outcome"]) == ("FAILED", "interrupted")
    assert (task["status"], task["outcome"], task["exit_code"]) == ("FAILED", "interrupted", 11)
    assert "delete" in task["cause"]
    assert [
        kind for (kind,) in harness.query("SELECT kind FROM correction WHERE run_id = ?", run_id)
    ] == ["killed"]


def proved_after_deletion(harness: RealHarness, run_id: int) -> tuple[Row, Row]:
    """The same for an end whose pod has disappeared with its last finalizer: nothing of it is left
    on the cluster.
    """
    run = harness.until_ended(run_id)
    until(lambda: not harness.objects(run_id, "pods"), "the end of the pod")
    return run, harness.task(run_id)


@pytest.mark.slow
def test_our_time_limit(harness: RealHarness) -> None:
    run_id = harness.begin(do="obey", limits={"run_timeout_s": 4})
    run = harness.until_ended(run_id)
    task = harness.task(run_id)
    assert (run["status"], run["outcome"]) == ("FAILED", "timed_out")
    assert (task["status"], task["outcome"]) == ("FAILED", "timed_out")


def test_the_clusters_deadline(harness: RealHarness) -> None:
    """The backstop: only the Job says why, because its controller deletes the pod."""
    run_id = harness.begin(do="obey")
    harness.until_running(run_id)
    [job] = harness.objects(run_id, "jobs")
    harness.cluster.admin.patch(harness.path(job), {"spec": {"activeDeadlineSeconds": 1}})
    run, task = proved_after_deletion(harness, run_id)
    assert (run["status"], task["status"], task["outcome"]) == ("FAILED", "FAILED", "timed_out")
    [job] = harness.objects(run_id, "jobs")
    assert "DeadlineExceeded" in {condition["reason"] for condition in job["status"]["conditions"]}


@pytest.mark.parametrize("crawler", ["unreachable", pytest.param("absent", marks=pytest.mark.slow)])
def test_an_image_that_does_not_exist(harness: RealHarness, crawler: str) -> None:
    """The run says so while it waits, can be stopped, and never becomes a success."""
    run_id = harness.begin(crawler, do="finish")
    reference = next(entry["image"] for entry in CATALOGUE if entry["name"] == crawler)
    until(
        lambda: reference in str(harness.run_row(run_id)["waiting_for"]),
        "a reason that names the image",
    )
    assert harness.status(run_id) == "INITIALIZING"
    harness.gateway.stop(run_id, reason="no such image")
    run, task = harness.until_ended(run_id), harness.task(run_id)
    assert (run["status"], run["outcome"]) == ("FAILED", "cancelled")
    assert (task["status"], task["exit_code"]) == ("CANCELLED", None), (
        "what never began has no exit code"
    )
    until(lambda: not harness.objects(run_id, "pods"), "the end of the pod")


@pytest.mark.slow
def test_nobody_stops_a_run_whose_image_does_not_exist(harness: RealHarness) -> None:
    # By then, a node must have tried and reported that there is no such image, however slow it is.
    run_id = harness.begin("unreachable", do="finish", limits={"start_timeout_s": 15})
    run, task = harness.until_ended(run_id), harness.task(run_id)
    assert (run["status"], run["outcome"]) == ("FAILED", "start_timeout")
    assert (task["status"], task["outcome"], task["exit_code"]) == ("FAILED", "start_timeout", None)
    assert "did not start in time" in task["cause"]
    assert NO_IMAGE in run["cause"]


def test_the_restricted_security_context_is_in_force(harness: RealHarness) -> None:
    run_id = harness.begin(do="look around")
    proved(harness, run_id)
    line = next(line for line in harness.gateway.logs(run_id).splitlines() if '"CapEff"' in line)
    found = json.loads(line[line.index("{") :])
    assert (found["uid"], found["gid"]) == (1000, 1000)
    assert int(found["CapEff"], 16) == int(found["CapBnd"], 16) == 0
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    refused = {place: found[place] for place in ("/", "/app", "/etc", "/opt/crawl-runner")}
    assert set(refused.values()) == {"Read-only file system"}, refused
    assert (found["/tmp"], found["/crawl/files"], found["token"]) == ("written", "written", False)


def test_the_kubelet_is_away_when_a_container_ends(harness: RealHarness) -> None:
    """It is killed from outside.

    The end is found late, but with the right code and without another verdict in between.
    """
    run_id = harness.begin("bare", do="wait")
    harness.until_running(run_id)
    harness.cluster.kill("kubelet")
    try:
        for pid in processes_with(f"CRAWL_RUN_ID={run_id}", harness):
            os.kill(pid, signal.SIGKILL)
        assert harness.status(run_id) == "PROCESSING"
    finally:
        harness.cluster.start_part("kubelet")
    run, task, ended = proved(harness, run_id)
    assert (ended["reason"], ended["exitCode"]) == ("Error", 137)
    assert (run["status"], run["outcome"]) == ("FAILED", "failed")
    assert (task["outcome"], task["exit_code"], task["exit_signal"]) == ("failed", 137, 9)


@pytest.mark.slow
def test_several_tasks_and_everything_is_labelled(harness: RealHarness) -> None:
    run_id = harness.begin(tasks=4, do="finish", max_parallel_tasks=2)
    run = harness.until_ended(run_id)
    assert (run["status"], harness.tasks(run_id)) == ("COMPLETED", {"SUCCEEDED": 4})
    harness.until_settled(run_id)
    for job in harness.objects(run_id, "jobs"):
        assert job["metadata"]["labels"][labels.RUN] == str(run_id)


def processes_with(variable: str, harness: RealHarness) -> list[int]:
    """Return processes in containers of our node that have this variable in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            inside = f"/{harness.cluster.node_names[0]}/" in (entry / "cgroup").read_text()
            if inside and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it ended while we read
            continue
    return found

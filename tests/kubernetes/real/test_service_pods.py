"""``deploy/`` at work: overlays/production, installed by docs/deployment.md on a real node, each
process in a pod.

Changed is what its files ask an installer for: the image, settings, catalogue, volumes, Secrets;
there is one pod of a kind, as in overlays/demo. Temporal, MariaDB with the two users of
docs/security.md, S3 and the event bus are processes of this machine. Nothing pulls images, so the
registry's login is left out. The small cluster has no CoreDNS and no kube-proxy: a name server and
a proxy of the tests stand in for both (``cluster/services.py``), over the EndpointSlices of the
real controller. Network policies are enforced by nobody, and the CronJobs are called by hand, as
nobody keeps their schedules.
"""

from __future__ import annotations

import io
import json
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.clusters.kubernetes import labels, rbac
from tests.e2e.harness import QUICK
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import until
from tests.kubernetes.real.installation import CRAWLS, PATIENCE_S, SERVICES, Installation
from tests.support.folders import reachable_folder
from tests.support.manifests import Document
from tests.support.service_image import BUILD_ID

WORKERS = (
    "workflows",
    "cluster",
    "control",
    "export",
    "audit",
    "observer",
    "user-code",
    "webhooks",
)
COMPONENTS = (*(f"worker-{role}" for role in WORKERS), "gateway", "scheduler")
#: Nine pods start at once on a machine that may have other work.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def installed(real_cluster: Cluster) -> Iterator[Installation]:
    """A complete installation, which does not outlive the module."""
    with reachable_folder() as folder:
        made = Installation(real_cluster, folder)
        try:
            made.start()
            made.prepare()
            made.migrate()
            made.apply()
            made.rolled_out()
            yield made
        finally:
            made.end()


@pytest.fixture(scope="module")
def gateway(installed: Installation) -> Iterator[Gateway]:
    """A client of the gateway's Service, with a token that may start and stop."""
    with installed.gateway() as found:
        yield found


# --- as they stand --------------------------------------------------------------------------------


def test_the_migration_ran_to_its_end_once(installed: Installation) -> None:
    [pod] = installed.pods("db-upgrade")
    [status] = pod["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 0
    assert "database empty -> " in installed.log(pod)


def test_every_deployment_is_ready_by_its_own_probe_and_no_process_gave_up(
    installed: Installation,
) -> None:
    found = installed.admin.get(f"/apis/apps/v1/namespaces/{SERVICES}/deployments")["items"]
    assert {one["metadata"]["name"] for one in found} == set(COMPONENTS)
    for one in found:
        assert one["status"]["availableReplicas"] == one["spec"]["replicas"] == 1
        [container] = one["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
        [pod] = installed.pods(one["metadata"]["name"])
        [status] = pod["status"]["containerStatuses"]
        assert status["ready"] is True
        # A probe that a starved machine answers late may have ended it. It must not have ended by
        # itself.
        before = status["lastState"].get("terminated") or {"exitCode": 0}
        assert before["exitCode"] in (0, 137, 143), f"{before}\n{installed.log(pod, before=True)}"


def test_no_process_of_ours_has_more_than_restricted_allows(installed: Installation) -> None:
    namespace = installed.admin.get(f"/api/v1/namespaces/{SERVICES}")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for component in COMPONENTS:
        [pod] = installed.pods(component)
        [process] = processes_of(pod)
        lines = (line.split(":", 1) for line in (process / "status").read_text().splitlines())
        status = {name: value.split() for name, value in lines}
        assert (status["Uid"], status["Gid"]) == (["65532"] * 4, ["65532"] * 4), component
        assert {int(status[name][0], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {
            0
        }
        assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
        mounts = [line.split() for line in (process / "mounts").read_text().splitlines()]
        assert next(options for _, place, _, options, *_ in mounts if place == "/").startswith(
            "ro,"
        )
        assert (process / "cwd").readlink() == Path("/var/lib/crawler-lifecycle")
        # Of the mounts, because /var/run of an image may be a link, which would be followed on this
        # machine.
        account = any(
            place.endswith("/secrets/kubernetes.io/serviceaccount") for _, place, *_ in mounts
        )
        assert account is (component in rbac.COMPONENTS), component


def processes_of(pod: Document) -> list[Path]:
    """Return the processes of a pod's container, as this machine sees them."""
    found = []
    for entry in (path for path in Path("/proc").iterdir() if path.name.isdecimal()):
        with suppress(OSError):  # it ended while we read
            inside = f"pod{pod['metadata']['uid']}" in (entry / "cgroup").read_text()
            if inside and b"crawlctl" in (entry / "cmdline").read_bytes():
                found.append(entry)
    return found


#: A doctor takes seconds of processor time. Together, these have every Secret and every network
#: path; a doctor in ``test_deploy`` checks what each account may do.
EXAMINED = ("worker-cluster", "worker-export", "worker-webhooks", "gateway", "scheduler")


@pytest.mark.parametrize(
    "components", [EXAMINED, pytest.param(COMPONENTS, marks=pytest.mark.slow)], ids=len
)
def test_the_doctor_finds_nothing_wrong_in_any_pod(
    installed: Installation, components: tuple[str, ...]
) -> None:
    """Called as the page says.

    It uses settings, Secrets, mounts, accounts and network paths exactly as the process does.
    """

    def examined(component: str) -> dict[str, Any]:
        answer = installed.execute(component, "crawlctl", "doctor", "-o", "json")
        found: dict[str, Any] = json.loads(answer)
        return found

    with ThreadPoolExecutor(2) as threads:
        for component, report in zip(components, threads.map(examined, components), strict=True):
            bad = [line for line in report["checks"] if line["level"] != "ok"]
            assert bad == [], component
            if component in rbac.COMPONENTS:
                text = next(line["text"] for line in report["checks"] if line["check"] == "rights")
                assert (
                    text
                    == f"{component} has its permissions, checked as system:serviceaccount:{SERVICES}:{component}"
                )


def test_figures_are_where_the_monitors_look(installed: Installation) -> None:
    for role in WORKERS:
        [pod] = installed.pods(f"worker-{role}")
        assert f'build="{BUILD_ID}"' in fetched(f"http://{pod['status']['podIP']}:9464/metrics"), (
            role
        )
    gateway = f"http://{installed.network.address('gateway', SERVICES)}:8500"
    assert "crawler_lifecycle_gateway_available" in fetched(
        f"{gateway}/metrics", installed.tokens["read"]
    )
    scheduler = f"http://{installed.network.address('scheduler', SERVICES)}:8600"
    assert f'build="{BUILD_ID}"' in fetched(f"{scheduler}/metrics", installed.tokens["scheduler"])
    assert json.loads(fetched(f"{gateway}/readyz", installed.tokens["read"]))["ready"] is True


def fetched(url: str, token: str | None = None) -> str:
    """Return the text of a page."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return str(answer.read().decode())


# --- at work --------------------------------------------------------------------------------------


def begin(gateway: Gateway, crawler: str = "writer", **limits: Any) -> int:
    """A run whose crawl waits until it is released or stopped."""
    request = {"crawler": crawler, **QUICK, "limits": QUICK["limits"] | limits}
    run_id = int(gateway.start(request, uuid.uuid4().hex)["run_id"])
    until(
        lambda: gateway.run(run_id)["tasks"] == {"RUNNING": 1},
        f"run {run_id} executing",
        PATIENCE_S,
    )
    until(lambda: "waiting" in gateway.logs(run_id), "a line of its log", PATIENCE_S)
    return run_id


def ended(gateway: Gateway, run_id: int) -> dict[str, Any]:
    """Return the run once it has its verdict and its export."""
    until(lambda: gateway.run(run_id)["exports"], f"the end of run {run_id}", PATIENCE_S)
    return gateway.run(run_id)


def crawl_pod(installed: Installation, run_id: int) -> Document:
    [pod] = installed.admin.get(
        f"/api/v1/namespaces/{CRAWLS}/pods?labelSelector={labels.RUN}%3D{run_id}"
    )["items"]
    found: Document = pod
    return found


@pytest.fixture(scope="module")
def completed(installed: Installation, gateway: Gateway) -> int:
    """A run from its start to its archive, during which two of its workers exit."""
    run_id = begin(gateway)
    executing = crawl_pod(installed, run_id)
    for component in ("worker-workflows", "worker-cluster"):
        [pod] = installed.pods(component)
        leave(installed, pod)
    (saved(installed, gateway, run_id) / "0" / "go").touch()
    ended(gateway, run_id)
    assert crawl_pod(installed, run_id)["metadata"]["uid"] == executing["metadata"]["uid"]
    return run_id


def saved(installed: Installation, gateway: Gateway, run_id: int) -> Path:
    """Return the folder with what the run's crawls keep for their next attempt."""
    return installed.volume / "state" / f"{run_id}-{gateway.run(run_id)['run_uid']}"


def leave(installed: Installation, pod: Document) -> None:
    """Delete a pod as a drain does: it ends by itself, normally, before anybody kills it."""
    path = f"/api/v1/namespaces/{SERVICES}/pods/{pod['metadata']['name']}"
    installed.hold(pod, SERVICES)
    installed.admin.delete(path)
    until(
        lambda: left_in_order(installed, pod["metadata"]["name"]), f"the end of {path}", PATIENCE_S
    )
    installed.hold(pod, SERVICES, ())


def left_in_order(installed: Installation, name: str) -> bool:
    """Return whether a held pod has ended; fail if it did not end by itself within its grace
    period.
    """
    pod = installed.admin.get(f"/api/v1/namespaces/{SERVICES}/pods/{name}")
    [status] = pod["status"]["containerStatuses"]
    end = status["state"].get("terminated")
    if end is None:
        return False
    assert (end["exitCode"], end["reason"]) == (0, "Completed"), f"{name}: {end}"
    return True


def test_a_run_goes_through_all_stages_while_its_workers_are_replaced(
    installed: Installation, gateway: Gateway, completed: int
) -> None:
    run = gateway.run(completed)
    assert (run["status"], run["outcome"], run["attempt"]) == ("COMPLETED", "finished", 1)
    assert run["tasks"] == {"SUCCEEDED": 1}
    rows = installed.database.execute(
        f"SELECT to_status FROM status_transition WHERE run_id = {completed} AND task_id IS NULL ORDER BY 1",
        "lifecycle",
    )
    assert {status for (status,) in rows} == {"INITIALIZING", "PROCESSING", "COMPLETED"}
    until(lambda: "run.ended" in events_of(installed, completed), "its event", PATIENCE_S)
    pod = crawl_pod(installed, completed)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["priorityClassName"] == "crawls"


def events_of(installed: Installation, run_id: int) -> list[str]:
    """Return a run's events on the bus."""
    told = [one["detail"] for one in installed.arrived()]
    return [detail["type"] for detail in told if detail["data"]["run_id"] == run_id]


def test_its_files_went_from_the_pod_by_the_gateways_tickets_into_the_archive(
    installed: Installation, gateway: Gateway, completed: int
) -> None:
    assert sorted(name.rpartition("/")[2] for name in left_in(installed, completed)) == [
        "bundle.json",
        "part-00000",
    ]
    content = zipfile.ZipFile(io.BytesIO(b"".join(gateway.archive(completed, 1))))
    assert content.read("task-0/page.html") == b"<p>one</p>"
    assert json.loads(content.read("manifest.json"))["run_id"] == completed
    [export] = gateway.run(completed)["exports"]
    assert export["url"].startswith(f"s3://{installed.archive.name}/runs/")


def left_in(installed: Installation, run_id: int) -> list[str]:
    """Return what the bucket for uploads of crawl pods contains of a run."""
    return [name for name in installed.files.keys() if name.startswith(f"tasks/{run_id}-")]  # noqa: SIM118


def test_a_stop_reaches_the_crawl(installed: Installation, gateway: Gateway) -> None:
    run_id = begin(gateway)
    gateway.stop(run_id, reason="enough", requested_by="a person")
    run = ended(gateway, run_id)
    assert (run["status"], run["outcome"], run["tasks"]) == (
        "FAILED",
        "cancelled",
        {"CANCELLED": 1},
    )
    path = f"/api/v1/namespaces/{CRAWLS}/pods?labelSelector={labels.RUN}%3D{run_id}"
    until(
        lambda: installed.admin.get(path)["items"] == [],
        "nothing of it is left on the cluster",
        PATIENCE_S,
    )


def test_a_forced_stop_reaches_a_crawl_that_is_being_stopped(
    installed: Installation, gateway: Gateway
) -> None:
    """The node cannot pass it on: a kubelet keeps the grace period with which it began.

    The runner asks the gateway.
    """
    run_id = begin(gateway, "deaf", stop_grace_s=3600)
    gateway.stop(run_id, reason="enough", requested_by="a person")
    name = crawl_pod(installed, run_id)["metadata"]["name"]
    until(
        lambda: installed.admin.is_killing(CRAWLS, name),
        "the node's beginning to end the pod",
        PATIENCE_S,
    )
    gateway.stop(run_id, force=True, reason="now", requested_by="a person")
    run = ended(gateway, run_id)
    assert (run["status"], run["outcome"]) == ("FAILED", "cancelled")
    [task] = gateway.tasks(run_id)
    assert (task["status"], task["exit_code"], task["exit_signal"]) == ("CANCELLED", 13, 9)


def test_an_audit_by_its_own_worker_finds_nothing(installed: Installation, completed: int) -> None:
    assert installed.audit()["findings"] == []


def test_the_nightly_jobs_by_hand(
    installed: Installation, gateway: Gateway, completed: int
) -> None:
    """Called for a run that ended, and was exported, long ago, as far as the database knows."""
    for table, column in (("run_history", "ended_at"), ("export_record", "at")):
        sql = (
            f"UPDATE {table} SET {column} = {column} - INTERVAL 100 DAY WHERE run_id = {completed}"
        )
        installed.database.execute(sql, "lifecycle")
    assert left_in(installed, completed)
    assert saved(installed, gateway, completed).is_dir()
    by_hand(installed, "gc")
    assert not saved(installed, gateway, completed).exists()
    assert left_in(installed, completed) == []
    by_hand(installed, "prune")
    assert (gateway.run(completed)["status"], len(b"".join(gateway.archive(completed, 1))) > 0) == (
        "COMPLETED",
        True,
    )


def by_hand(installed: Installation, cron_job: str) -> None:
    """Call a CronJob now, and wait until it is done."""
    job = f"{cron_job}-{uuid.uuid4().hex[:8]}"
    installed.kubectl("create", "job", job, f"--from=cronjob/{cron_job}", "-n", SERVICES)
    installed.kubectl(
        "wait",
        "--for=condition=complete",
        f"job/{job}",
        "-n",
        SERVICES,
        f"--timeout={PATIENCE_S:g}s",
    )


def test_it_is_removed_as_the_page_says(installed: Installation) -> None:
    """The last test: every process ends by itself, normally, before anybody kills it."""
    names = [
        pod["metadata"]["name"] for pod in installed.pods() if pod["status"]["phase"] == "Running"
    ]
    assert len(names) == len(COMPONENTS)
    for pod in installed.pods():
        if pod["metadata"]["name"] in names:
            installed.hold(pod, SERVICES)
    installed.kubectl("delete", "namespace", CRAWLS, f"--timeout={PATIENCE_S:g}s")
    installed.kubectl("delete", "namespace", SERVICES, "--wait=false")
    for name in names:
        until(lambda name=name: left_in_order(installed, name), f"the end of {name}", PATIENCE_S)  # type: ignore[misc]

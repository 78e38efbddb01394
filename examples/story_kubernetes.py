"""``python -m examples.story_kubernetes`` executes the story with real pods, and proves with the
objects of the cluster that it is true.

It starts its own Kubernetes on this machine (the test cluster: API server, controllers, kubelet,
containerd) and the embedded stack, and crawls the demonstration site from Scrapy pods. One run is
stopped, one is killed for its memory, the image of one does not exist, and the pod of one is
deleted without the knowledge of the service. A manager and a graph read items of their crawls from
archives. Then the database, the archive, the events and the objects of the cluster are compared. It
exits with 0 only if every check passes. It needs root, and ``make kube-binaries`` must have been
run before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.output import milliseconds, span
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.cli.stack.supervise import PartFailed
from crawler_lifecycle.clusters.kubernetes import labels
from examples.story import STORYTELLER, Run, Story, _leave, offer_user_code
from examples.story_checks import (
    Slots,
    Untrue,
    check_archive,
    check_database,
    check_events,
    expect,
    query,
)
from examples.story_view import View
from tests.kubernetes.cluster import binaries, node
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import ClusterFailed
from tests.support.crawler_image import REFERENCE, assemble

SERVICES = 24
LETTERS = ("a-h", "i-p", "q-z")
#: A port on which nobody listens, so that no registry answers, and no registry is searched by name.
NO_IMAGE = "127.0.0.1:1/nobody:1"
CLAIM = "supporting-files"
#: Real containers on a machine with few processors need a generous time limit, which is reached
#: only if something fails.
PATIENCE_S = 600.0


def catalogue() -> list[dict[str, Any]]:
    """The example crawlers in the image, one crawler with too little memory, and one crawler whose
    image does not exist.
    """
    entry: dict[str, Any] = {
        "kind": "scrapy",
        "image": REFERENCE,
        "args": {
            "site": {"required": True},
            "letters": {"required": False},
            "max_pages": {"required": False},
        },
        "resources": {"cpu": "500m", "memory": "256Mi"},
        "resumable": True,
        "kubernetes": {"project": "/opt/crawlers"},
    }
    services = entry | {"spider": "services", "args": {"site": {"required": True}}}
    return [
        services | {"name": "services"},
        entry
        | {"name": "operations", "spider": "operations", "settings": {"DOWNLOAD_DELAY": "0.1"}},
        services | {"name": "hungry", "resources": {"cpu": "500m", "memory": "48Mi"}},
        services | {"name": "nowhere", "image": NO_IMAGE},
        {
            "name": "plain",
            "kind": "command",
            "image": REFERENCE,
            "command": ["python3", "/opt/crawlers/plain_crawler.py"],
            "args": {
                "site": {"required": True},
                "max_pages": {"required": False},
                "delay": {"required": False},
            },
            "resources": {"cpu": "100m", "memory": "64Mi"},
        },
    ]


class ClusterStory(Story):
    """The acts on a cluster. The first story is about processes, and this story is about pods."""

    def __init__(
        self, stack: Stack, gateway: Gateway, view: View, cluster: Cluster, namespace: str
    ) -> None:
        super().__init__(stack, gateway, view)
        self.cluster, self.namespace = cluster, namespace

    # --- the acts ---------------------------------------------------------------------------------

    def act_runs(self) -> None:
        """Two runs that may finish, and four runs that will not."""
        site = {"site": str(self.stack.addresses["site"])}
        slow = {"DOWNLOAD_DELAY": "1", "CONCURRENT_REQUESTS": "2"}
        self._start("single", "services", args=site)
        self._start(
            "multi",
            "operations",
            tasks=[{"args": {**site, "letters": part, "max_pages": "15"}} for part in LETTERS],
        )
        self._start("stopped", "operations", args=site, settings=slow)
        # By default, a task that the cluster ended is retried. This run should end, so that its
        # correction can be compared.
        self._start("taken", "operations", args=site, settings=slow, retries={"max": 0})
        self._start("hungry", "hungry", args=site)
        self._start("nowhere", "nowhere", args=site, limits={"start_timeout_s": 60})
        self._start_user_code(site["site"])

    def act_image(self) -> None:
        """The missing image is named while the run waits for it."""
        self._wait(
            "words about the image",
            lambda: NO_IMAGE in str(self._run("nowhere").get("waiting_for")),
        )
        self.view.say(
            "waiting", f"run {self.ids['nowhere']}: {self._run('nowhere')['waiting_for']}", "yellow"
        )

    def act_stop(self) -> None:
        """A working crawl is stopped through the gateway."""
        self._wait("a task that has pages", lambda: self._run("stopped")["pages"])
        self.gateway.stop(self.ids["stopped"], reason="act 3", requested_by=STORYTELLER)
        self.view.say("stop", f"run {self.ids['stopped']} was asked to stop", "yellow")

    def act_chaos(self) -> None:
        """A pod is deleted without the knowledge of the service."""
        self._wait("a task that has pages", lambda: self._run("taken")["pages"])
        [pod] = self._objects("taken", "pods")
        name = pod["metadata"]["name"]
        self.cluster.admin.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        self.view.say("chaos", f"deleted pod {name} behind the service's back", "red")
        self._wait(
            "the correction", lambda: self.gateway.rows(f"/v1/runs/{self.ids['taken']}/corrections")
        )
        self.corrections = self.gateway.rows(f"/v1/runs/{self.ids['taken']}/corrections")
        for found in self.corrections:
            text = (
                f"believed {found['believed']}, true was {found['truth']}, for "
                f"{milliseconds(found['lag_ms'])}"
            )
            self.view.say(
                "corrected", f"{found['kind']}: {text}, found by {found['found_by']}", "green"
            )
        expect(
            any(found["kind"] == "killed" for found in self.corrections),
            f"corrections: {self.corrections}",
        )

    def act_end(self) -> None:
        """Every run ends with the true verdict."""
        runs = {name: self._wait_for_end(name) for name in self.ids}
        self._wait_for_user_code()
        self._wait("the exports", lambda: all(self._run(name)["exports"] for name in self.ids))
        wanted = {
            "single": ("COMPLETED", "finished"),
            "multi": ("COMPLETED", "finished"),
            "stopped": ("FAILED", "cancelled"),
            "taken": ("FAILED", "interrupted"),
            "hungry": ("FAILED", "killed by oom"),
            "nowhere": ("FAILED", "start_timeout"),
        }
        for name, verdict in wanted.items():
            found = (runs[name]["status"], runs[name]["outcome"])
            expect(found == verdict, f"run {name} is {found}, not {verdict}: {runs[name]['cause']}")
        expect(
            runs["single"]["items"] == SERVICES,
            f"{runs['single']['items']} items of {SERVICES} services",
        )
        expect(
            runs["multi"]["tasks"] == {"SUCCEEDED": 3},
            f"the tasks of the run of three: {runs['multi']['tasks']}",
        )

    def summary(self) -> None:
        """Return what can be inspected."""
        runs = [self._run(name) for name in self.ids]
        outcomes = ", ".join(
            f"{name} {run['outcome']}" for name, run in zip(self.ids, runs, strict=True)
        )
        items = sum(run["items"] or 0 for run in runs)
        self.view.plain()
        self.view.plain(
            f"{len(runs)} runs · {items:,} items · {len(self.corrections)} corrected · {outcomes}"
        )
        for run in runs:
            for export in run["exports"]:
                self.view.plain(f"archive   {export['url'] or export['status']}")
        self.view.plain(f"events    {self.stack.addresses['events']}")
        self.view.plain(f"state     {self.stack.state_dir}")

    # --- proof ------------------------------------------------------------------------------------

    def verify(self) -> list[str]:
        """Check every run at every source, including the cluster, and return everything that is
        untrue.
        """
        failed: list[str] = []
        checks: dict[str, Callable[[Slots, Run], str]] = {
            "database": check_database,
            "cluster": self._check_cluster,
            "archive": check_archive,
            "events": check_events,
        }
        for name, run_id in self.ids.items():
            for title, check in checks.items():
                try:
                    self.view.say(
                        "ok",
                        f"run {run_id} {title}: {check(self._places(), self._run(name))}",
                        "green",
                    )
                except (Untrue, OSError, KeyError, ValueError) as error:
                    failed.append(f"run {run_id} {title}: {error or type(error).__name__}")
                    self.view.say("FAILED", failed[-1], "bold red")
        return failed + self._verify_user_code()

    def _check_cluster(self, places: Slots, run: Run) -> str:
        """Check that rows and Jobs are the same tasks, that the kubelet's exit codes equal the
        recorded ones, and that nothing executes.
        """
        name = next(name for name, run_id in self.ids.items() if run_id == run["run_id"])
        self._wait("the cluster let go of", lambda: self._let_go(name))
        rows = query(
            places,
            "SELECT cluster_uid, exit_code FROM task_history WHERE run_id = ?",
            run["run_id"],
        )
        codes = dict(rows)
        jobs = {job["metadata"]["uid"] for job in self._objects(name, "jobs")}
        expect(jobs <= set(codes), f"Jobs that no row knows: {jobs - set(codes)}")
        compared = 0
        for pod in self._objects(name, "pods"):
            [status] = pod["status"]["containerStatuses"]
            ended = status["state"].get("terminated")
            expect(ended, f"pod {pod['metadata']['name']} has not ended: {status['state']}")
            code = codes[pod["metadata"]["ownerReferences"][0]["uid"]]
            expect(
                code == ended["exitCode"],
                f"on record is exit {code}, the kubelet reports {ended['exitCode']}",
            )
            compared += 1
        return (
            f"{len(rows)} rows, {len(jobs)} Jobs left, exit codes of {compared} pods compared, "
            "nothing executes"
        )

    def _let_go(self, name: str) -> bool:
        return not any(
            labels.FINALIZER in p["metadata"].get("finalizers", ())
            for p in self._objects(name, "pods")
        )

    def _objects(self, name: str, kind: str) -> list[dict[str, Any]]:
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        path = f"{group}/namespaces/{self.namespace}/{kind}?labelSelector={labels.RUN}%3D{self.ids[name]}"
        found: list[dict[str, Any]] = self.cluster.admin.get(path)["items"]
        return found

    # --- asking -----------------------------------------------------------------------------------

    def _start(self, name: str, crawler: str, **more: object) -> None:
        limits = {
            "start_check_s": 0.5,
            "stop_grace_s": 20,
            **dict(_mapping(more.pop("limits", {}))),
        }
        request: Run = {"crawler": crawler, "requested_by": STORYTELLER, "tags": ["story"], **more}
        request |= {"poll_minutes": [0.05, 0.1], "limits": limits}
        started = self.gateway.start(request, f"story-{self._key}-{name}")
        self.ids[name] = started["run_id"]
        tasks = more.get("tasks")
        kind = f"{len(tasks)} tasks" if isinstance(tasks, list) else "single process"
        self.view.say("start", f"run {started['run_id']}: {crawler}, {kind}")

    def _wait(
        self, what: str, condition: Callable[[], object], timeout_s: float = PATIENCE_S
    ) -> None:
        super()._wait(what, condition, max(timeout_s, PATIENCE_S))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


# --- the stage ------------------------------------------------------------------------------------


def prepare(cluster: Cluster, folder: Path, view: View) -> tuple[str, ClusterAccess]:
    """Prepare the crawler image on the node, a namespace that enforces Pod Security "restricted",
    and a volume for files.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        cluster.nodes[0].load(assemble(Path(work) / "crawler.tar"))
    view.say("cluster", f"the crawler image is on the node after {span(time.monotonic() - began)}")
    namespace = cluster.namespace(
        "crawls", labels={"pod-security.kubernetes.io/enforce": "restricted"}
    )
    path = f"/api/v1/namespaces/{namespace}"
    cluster.admin.ensure(f"{path}/serviceaccounts", {"metadata": {"name": "crawl"}})
    files = (folder / "files").absolute()
    files.mkdir(parents=True)
    files.chmod(0o777)  # Pods execute as user 1000, and a path of this machine has no fsGroup.
    room: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = room | {
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(files), "type": "Directory"},
    }
    cluster.admin.post("/api/v1/persistentvolumes", {"metadata": {"name": CLAIM}, "spec": volume})
    claim = room | {"volumeName": CLAIM, "resources": {"requests": {"storage": "1Gi"}}}
    cluster.admin.post(
        f"{path}/persistentvolumeclaims", {"metadata": {"name": CLAIM}, "spec": claim}
    )
    os.environ["LIFECYCLE_CLUSTER__VOLUME_CLAIM"] = CLAIM
    os.environ["LIFECYCLE_CLUSTER__VOLUME_PATH"] = str(files)
    return namespace, ClusterAccess(
        cluster.kubeconfig, None, namespace, REFERENCE, cluster.places.gateway
    )


def tell(story: ClusterStory) -> list[str]:
    """Execute all acts and all checks, and return what failed."""
    failed: list[str] = []
    try:
        for act in (
            story.act_runs,
            story.act_image,
            story.act_chaos,
            story.act_stop,
            story.act_end,
        ):
            act()
    except Untrue as error:
        failed.append(str(error))
        story.view.say("FAILED", str(error), "bold red")
        with suppress(CommandFailed):
            story.give_up()
    story.view.freeze()
    return failed or story.verify()


def perform(view: View, folder: Path) -> list[str]:
    """Start the cluster and the stack, execute the story, end all of them, and return what failed."""
    with ExitStack() as after:
        view.say(
            "cluster", "starting etcd, API server, controllers, scheduler, containerd and kubelet"
        )
        begun = time.monotonic()
        cluster = after.enter_context(Cluster(nodes=1))
        view.say("cluster", f"a node is ready after {span(time.monotonic() - begun)}")
        namespace, place = prepare(cluster, folder, view)
        crawlers = folder / "crawlers.yaml"
        crawlers.write_text(json.dumps(catalogue(), indent=1))
        offer_user_code()
        stack = Stack(
            Layout(
                folder, services=SERVICES, only_free_ports=True, crawlers=crawlers, kubernetes=place
            ),
            say=lambda line: view.say("stack", line),
        )
        stack.start()
        after.callback(stack.stop)
        view.say(
            "stack", f"ready: gateway {stack.addresses['gateway']}, site {stack.addresses['site']}"
        )
        gateway = after.enter_context(Gateway(str(stack.addresses["gateway"]), timeout_s=60))
        story = ClusterStory(stack, gateway, view, cluster, namespace)
        failed = tell(story)
        if not failed:
            story.summary()
        return failed


def main() -> int:
    """Execute the story, and return 0 if every check passed."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.story_kubernetes", description=__doc__
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path(".crawl-kubernetes"),
        help="made anew; default: %(default)s",
    )
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    if reason := node.unable():
        print(f"no real node here: {reason}", file=sys.stderr)
        return 1
    folder = options.state_dir.absolute()
    if folder.exists() and not (folder / "crawlers.yaml").exists() and any(folder.iterdir()):
        print(f"{folder} holds something else: name another --state-dir", file=sys.stderr)
        return 1
    shutil.rmtree(
        folder, ignore_errors=True
    )  # Its runs belonged to a cluster that no longer exists.
    folder.mkdir(parents=True)
    begun = time.monotonic()
    with View() as view:
        try:
            failed = perform(view, folder)
        except (CommandFailed, PartFailed, ClusterFailed, binaries.NoBinaries) as error:
            failed = [str(error)]
        except KeyboardInterrupt:
            view.plain("interrupted")
            return 130
        view.freeze()
        took = span(time.monotonic() - begun)
        view.plain(
            f"FAILED after {took}: {'; '.join(failed)}"
            if failed
            else f"every check held, in {took}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The whole stack with a real cluster: services are processes of this machine, crawls are real
containers.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.clusters.kubernetes import labels
from tests.e2e.harness import QUICK, TERMINAL, Harness, until
from tests.kubernetes.cluster import images
from tests.kubernetes.cluster.cluster import Cluster

ACTOR = "crawl.test/actor:1"
#: A registry that refuses at once, on a port on which nobody listens.
NO_IMAGE = "127.0.0.1:1/nobody:1"
RUNNER = Path(__file__).parents[3] / "crawler_lifecycle" / "runner"

_ENTRY: dict[str, Any] = {
    "kind": "command",
    "command": ["python3", "/app/actor.py"],
    "image": ACTOR,
    "args": {"do": {"required": True}, "code": {"required": False}},
    "resources": {"cpu": "500m", "memory": "96Mi"},
    "stop_signal": "SIGTERM",
    "resumable": True,
    "kubernetes": {"project": "/app"},
}
#: The same program with our runner and without, and images that do not exist.
CATALOGUE: list[dict[str, Any]] = [
    _ENTRY | {"name": "actor"},
    _ENTRY | {"name": "bare", "kubernetes": {"runner": False}},
    _ENTRY | {"name": "unreachable", "image": NO_IMAGE},
    _ENTRY
    | {
        "name": "absent",
        "image": "crawl.test/absent:1",
        "kubernetes": {"project": "/app", "pull_policy": "Never"},
    },
]


def actor_image(folder: Path) -> Path:
    """Return the test image: Python, our runner, the actor."""
    program = Path(__file__).with_name("actor.py")
    layer = images.Layer(((RUNNER, "opt/crawl-runner"), (program, "app/actor.py")))
    return images.with_python(folder / "actor.tar", ACTOR, [layer])


class RealHarness(Harness):
    """A stack whose crawls are Jobs of ``cluster``, in a namespace that enforces Pod Security
    "restricted".
    """

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.namespace = cluster.namespace(
            "real", labels={"pod-security.kubernetes.io/enforce": "restricted"}
        )
        accounts = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        cluster.admin.ensure(accounts, {"metadata": {"name": "crawl"}})
        super().__init__(folder)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder.mkdir(parents=True, exist_ok=True)
        catalogue = self.folder / "crawlers.yaml"
        catalogue.write_text(json.dumps(CATALOGUE))
        self.stack = Stack(
            Layout(
                self.folder,
                services=6,
                only_free_ports=True,
                crawlers=catalogue,
                kubernetes=ClusterAccess(
                    self.cluster.kubeconfig, None, self.namespace, None, self.cluster.places.gateway
                ),
            ),
            say=self.said.append,
        )

    # --- runs -------------------------------------------------------------------------------------

    def begin(
        self,
        crawler: str = "actor",
        tasks: int = 0,
        limits: dict[str, Any] | None = None,
        **more: Any,
    ) -> int:
        """Start a run; ``do`` and ``code`` are arguments of the actor."""
        args = {key: str(more.pop(key)) for key in ("do", "code") if key in more}
        request: dict[str, Any] = {
            "crawler": crawler,
            **QUICK,
            **more,
            "limits": QUICK["limits"] | (limits or {}),
        }
        request |= {"tasks": [{"args": args}] * tasks} if tasks else {"args": args}
        return int(self.gateway.start(request, uuid.uuid4().hex)["run_id"])

    def until_running(self, run_id: int) -> None:
        """Return when the run and all its tasks are recorded as executing; a poll records tasks
        first.
        """
        until(lambda: set(self.tasks(run_id)) == {"RUNNING"}, f"run {run_id} executing")
        until(lambda: self.status(run_id) == "PROCESSING", f"run {run_id} processing")
        # A container runs before its program does: a signal at that time would prove something
        # else.
        logs = [f"{self.path(pod)}/log" for pod in self.objects(run_id, "pods")]
        until(
            lambda: all("waiting" in self.cluster.admin.text(path) for path in logs),
            "the actors at work",
        )

    def until_ended(self, run_id: int) -> dict[str, Any]:
        """Return the row of the run once it has ended, with its event, its export and a closed
        workflow.
        """
        until(lambda: self.status(run_id) in TERMINAL, f"the end of run {run_id}")
        until(lambda: self.closed([run_id]), f"the close of run {run_id}")
        return self.run_row(run_id)

    def run_row(self, run_id: int) -> dict[str, Any]:
        """Return the present row of the run."""
        columns = "status, outcome, cause, waiting_for"
        rows = self.query(f"SELECT {columns} FROM run_history WHERE run_id = ?", run_id)
        return dict(zip(columns.split(", "), rows[0], strict=True))

    def task(self, run_id: int) -> dict[str, Any]:
        """Return the row of the run's only task."""
        columns = "task_id, status, outcome, cause, reason, exit_code, exit_signal, cluster_uid, cluster_name, node, pages"
        rows = self.query(
            f"SELECT {columns} FROM task_history WHERE run_id = ? AND superseded_by IS NULL", run_id
        )
        assert len(rows) == 1
        return dict(zip(columns.split(", "), rows[0], strict=True))

    # --- the cluster, as its administrator sees it ------------------------------------------------

    def objects(self, run_id: int, kind: str) -> list[dict[str, Any]]:
        """Return the Jobs or pods of a run."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        path = f"{group}/namespaces/{self.namespace}/{kind}?labelSelector={labels.RUN}%3D{run_id}"
        found: list[dict[str, Any]] = self.cluster.admin.get(path)["items"]
        return found

    def pod(self, run_id: int) -> dict[str, Any]:
        """Return the only pod of a run."""
        [found] = self.objects(run_id, "pods")
        return found

    def path(self, item: dict[str, Any]) -> str:
        """Return the address of a Job or pod."""
        group, kind = (
            ("/api/v1", "pods")
            if item["metadata"].get("ownerReferences")
            else ("/apis/batch/v1", "jobs")
        )
        return f"{group}/namespaces/{self.namespace}/{kind}/{item['metadata']['name']}"

    def until_settled(self, run_id: int) -> None:
        """Return when all objects of the run are marked as recorded and our finalizer holds
        nothing.
        """

        def settled() -> bool:
            items = [*self.objects(run_id, "jobs"), *self.objects(run_id, "pods")]
            marked = all(labels.SETTLED in item["metadata"]["labels"] for item in items)
            return marked and not any(
                labels.FINALIZER in i["metadata"].get("finalizers", ()) for i in items
            )

        until(settled, f"run {run_id} settled on the cluster")

"""``python -m tools.faults.jobs --seed S`` compares what Job.status reports about crawls on
Kubernetes with what our service reports.

There is a real API server with its controllers, and kwok simulates the nodes. Each crawl exists
twice: as a plain Job and as a run of our service. A naive reader reads the Job's ``status`` through
a proxy, and keeps the last status while it gets no answer. For our service, the record is read, and
its worker uses the same proxy. The truth is what the nodes know about their containers. It is read
past the proxy before and after both sides were read. For nodes that were cut off or lost, the truth
follows from what the fault tests did to them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.problems import CommandFailed
from tests.e2e.harness import Harness as Stack
from tests.kubernetes.cluster.admin import Admin, AdminError
from tests.kubernetes.cluster.cluster import Cluster
from tools.faults.build import available
from tools.faults.faults import Faults, Strike, storm
from tools.faults.harness import Harness
from tools.faults.load import PACE_S, TASKS, since, untrue
from tools.faults.nodes import OURS, PLAIN, SIDES, Nodes, said
from tools.faults.oracle import (
    ENDED,
    EVERY_S,
    SETTLE_S,
    Evidence,
    Name,
    Seen,
    doubled,
    figure,
    statuses,
)
from tools.faults.parts import listens
from tools.faults.table import lines, save
from tools.soak.journal import Process

KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("refuse", "black hole", "cut"), ("api",)),
    **dict.fromkeys(("kill", "freeze"), ("controllers",)),
    **dict.fromkeys(("delete", "evict"), ("pod",)),
    **dict.fromkeys(("cut off", "loss"), ("nodes",)),
}
SECONDS, CODES, STOP_S = (2, 8, 20, 40), (0, 0, 0, 1), 3
#: Phases of pods whose containers may execute.
EXECUTING = "?fieldSelector=status.phase!=Succeeded,status.phase!=Failed"
IMAGE, CONTAINER = "crawl.test/crawl:1", "crawler"
QUICK = {"poll_minutes": [0.1], "limits": {"start_check_s": 0.5}, "retries": {"max": 0}}


def life(seconds: int, code: int) -> dict[str, str]:
    """Return the annotations that determine how long a container in kwok executes, and how it ends."""
    return {
        "KWOK_RUN_FOR": f"{seconds}s",
        "KWOK_EXIT_CODE": str(code),
        "KWOK_STOP_AFTER": f"{STOP_S}s",
    }


class Jobs(Harness):
    """The cluster behind a proxy, our stack on it, the load, and the readers of both sides."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(
            folder, lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
        )
        self.dice, self.next, self.count, self.nodes = (
            random.Random(f"load {seed}"),
            0.0,
            0,
            Nodes(),
        )
        self.seen: dict[str, list[Seen]] = {side: [] for side in SIDES}
        self.told: dict[str, dict[Name, str]] = {side: {} for side in SIDES}
        self.asked: dict[str, dict[str, Any]] = {}
        self.began: dict[str, dict[Name, float]] = {side: {} for side in SIDES}
        """When each crawl was accepted, on both sides."""
        self.unread, self.over = 0, threading.Event()

    def begin(self, undo: ExitStack) -> None:
        self.logs.mkdir()
        self.cluster = cluster = undo.enter_context(Cluster(kwok=2))
        undo.callback(self._end)
        space, core = cluster.namespace("faults"), "/api/v1/namespaces"
        self.jobs, self.pods = f"/apis/batch/v1/namespaces/{space}/jobs", f"{core}/{space}/pods"
        cluster.admin.ensure(f"{core}/{space}/serviceaccounts", {"metadata": {"name": "crawl"}})
        controllers = cluster.parts()["kube-controller-manager"]
        controllers.kill()  # From now on, the environment of the fault tests is the same as before.
        port = int(
            next(w for w in controllers.command if w.startswith("--secure-port=")).partition("=")[2]
        )
        self._part(
            "controllers", [*controllers.command], controllers.env, lambda: listens(port)
        ).wait_ready()
        self._toxiproxy(available(short=True))
        self.ports["api"] = int(cluster.api.rpartition(":")[2])
        self.proxies.add("api", proxy := self.port("proxy of api"), self.port("api"))
        self.far, authority = f"https://127.0.0.1:{proxy}", cluster.plane.authority
        access = authority.kubeconfig(self.folder / "kubeconfig", self.far, cluster.token(), space)
        entry = {
            "kind": "command",
            "command": ["crawl"],
            "image": IMAGE,
            "kubernetes": {"runner": False},
        }
        crawlers = [
            entry | {"name": f"c{s}-{c}", "env": life(s, c)} for s in SECONDS for c in {*CODES}
        ]
        (catalogue := self.folder / "crawlers.json").write_text(json.dumps(crawlers))
        where = ClusterAccess(access, None, space)
        self.ours = Stack(self.folder / "ours", crawlers=catalogue, kubernetes=where)
        undo.callback(self.ours.end)
        self.ours.start()
        self.reader = threading.Thread(target=self._sample, daemon=True)
        self.reader.start()
        undo.callback(self.reader.join)
        undo.callback(self.over.set)

    def turn(self) -> None:
        """Begin a crawl on both sides when it is due. Requests without an answer are sent again."""
        if time.time() > self.next:
            self.next = time.time() + self.dice.expovariate(1 / PACE_S)
            self.count += 1
            seconds, code = self.dice.choice(SECONDS), self.dice.choice(CODES)
            env = [{"name": name, "value": value} for name, value in life(seconds, code).items()]
            pod = {
                "restartPolicy": "Never",
                "containers": [{"name": CONTAINER, "image": IMAGE, "env": env}],
            }
            template: dict[str, Any] = {
                "metadata": {"labels": {"plain": str(self.count)}},
                "spec": pod,
            }
            job = {"metadata": template["metadata"] | {"name": f"plain-{self.count}"}}
            self.cluster.admin.post(
                self.jobs, job | {"spec": {"backoffLimit": 0, "template": template}}
            )
            self.began[PLAIN][self.count, 0, 1] = time.time()
            self.asked[f"beside-{self.count}"] = {"crawler": f"c{seconds}-{code}", **QUICK}
        for key in list(self.asked):
            with suppress(CommandFailed):
                run_id = int(self.ours.gateway.start(self.asked[key], key)["run_id"])
                self.began[OURS][run_id, 0, 1] = time.time()
                del self.asked[key]

    def _sample(self) -> None:
        """Compare, twice a second, the truth, the statuses of both sides, and the truth after that.

        Keeps what is untrue.
        """
        naive = Admin(
            self.far, self.cluster.token(), self.cluster.plane.authority.certificate, timeout_s=2
        )
        due, last = time.monotonic(), time.time()
        while not self.over.wait(max(0.0, due - time.monotonic())):
            due, at = max(due + EVERY_S, time.monotonic()), time.time()
            try:
                before = self.learn(EXECUTING)
                for side, ask in ((OURS, self._record), (PLAIN, lambda: self._statuses(naive))):
                    with suppress(Exception):  # A reader without an answer keeps the last status.
                        self.told[side] |= ask()
                now = self.learn(EXECUTING)
            except (AdminError, OSError, HTTPException):
                self.unread += 1
                continue
            for side, seen in self.seen.items():
                rows = [(*name, word) for name, word in self.told[side].items()]
                seen += untrue(at, rows, before[side], now[side], since(last, at))
            last = at

    def learn(self, which: str = "") -> dict[str, dict[Name, str]]:
        """Return what is true of all containers, or of these containers and those that are known."""
        return self.nodes.learn(self.cluster.admin.get(f"{self.pods}{which}")["items"], time.time())

    def _record(self) -> dict[Name, str]:
        """Return the recorded status of each of our tasks."""
        return {
            (run_id, index, attempt): status
            for run_id, index, attempt, status in self.ours.query(TASKS)
        }

    def _statuses(self, naive: Admin) -> dict[Name, str]:
        """Return the status of every Job."""
        jobs = naive.get(f"{self.jobs}?labelSelector=plain")["items"]
        return {
            (int(job["metadata"]["labels"]["plain"]), 0, 1): said(job.get("status", {}))
            for job in jobs
        }


class Broken(Faults):
    """The faults of a cluster, in addition to the faults of every harness."""

    def __init__(self, harness: Jobs, seed: int, only: str) -> None:
        super().__init__(harness, seed, only)
        self.kinds, self.nodes, self.cluster, self.admin = (
            KINDS,
            harness.nodes,
            harness.cluster,
            harness.cluster.admin,
        )
        self.pods = harness.pods

    def _to_pods(self, label: str, do: Callable[[str], object]) -> Strike:
        """A fault of one pod of each side, when each side has a pod that would continue for some
        time.
        """

        def count(did: dict[str, float]) -> None:
            living = [self.nodes.living(side, 2 * STOP_S) for side in SIDES]
            if not did and all(living):
                for boxes in living:
                    do(pod := self.dice.choice(boxes).pod)
                    did[f"pod {pod}"] = 1

        return Strike(label, time.time() + 2 * STOP_S, lambda: None, count)

    def _delete(self, label: str, whom: str) -> Strike:
        return self._to_pods(label, lambda pod: self.admin.delete(f"{self.pods}/{pod}"))

    def _evict(self, label: str, whom: str) -> Strike:
        """Evicts pods, as a drain does."""
        body: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction"}
        at = f"{self.pods}/%s/eviction"
        return self._to_pods(
            label, lambda pod: self.admin.post(at % pod, body | {"metadata": {"name": pod}})
        )

    def _cut_off(self, label: str, whom: str) -> Strike:
        """The nodes cannot be reached. Their containers continue, and end when they are due."""
        self.cluster.freeze("kwok")
        self.nodes.cut, kwok = True, self.cluster.parts()["kwok"]

        def count(did: dict[str, float]) -> None:
            if self.nodes.cut and kwok.stands_still():
                did["containers cut off"] = max(
                    did.get("containers cut off", 0), len(self.nodes.living())
                )

        def heal() -> None:
            count(strike.did)
            self.cluster.thaw("kwok")
            self.nodes.cut = False

        strike = Strike(label, time.time() + self.dice.uniform(15, 40), heal, count)
        return strike

    def _loss(self, label: str, whom: str) -> Strike:
        """The machines of the nodes are off.

        When they are on again, their kubelets find that the containers are gone.
        """
        self.cluster.kill("kwok")
        lost, self.nodes.off = len(self.nodes.living()), True

        def heal() -> None:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            gone = {"exitCode": 137, "reason": "Error", "startedAt": now, "finishedAt": now}
            one = {"name": CONTAINER, "state": {"terminated": gone, "running": None}}
            for pod in self.admin.get(self.pods)["items"]:
                if pod["status"]["phase"] == "Running":
                    body = {"status": {"phase": "Failed", "containerStatuses": [one]}}
                    self.admin.patch(
                        f"{self.pods}/{pod['metadata']['name']}/status",
                        body,
                        kind="strategic-merge",
                    )
            self.nodes.off = False
            self.cluster.start_part("kwok")

        until = time.time() + self.dice.uniform(15, 40)
        return Strike(label, until, heal, lambda did: did.update({"containers gone": lost}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults.jobs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument(
        "--only", default="", help="only faults whose name contains this, such as 'of pod'"
    )
    parser.add_argument(
        "--calm",
        type=float,
        default=0.0,
        help="seconds of load before the first fault",
    )
    parser.add_argument(
        "--figures", type=Path, help="a file for the figures, which tools.faults.table reads"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    harness = Jobs(folder := Path(tempfile.mkdtemp(prefix="faults-")), chosen.seed)
    with ExitStack() as undo:
        harness.begin(undo)
        storm(harness, chosen.calm, harness.turn)
        faults = Broken(harness, chosen.seed, chosen.only)
        storm(harness, 60 * chosen.minutes, harness.turn, faults.turn)
        faults.finish()
        end = time.monotonic() + SETTLE_S
        while (left := harness.ours.open_runs()) and time.monotonic() < end:
            storm(harness, 1)
        storm(harness, 3)  # Both sides are read once more.
        harness.learn()
        wrong = [] if harness.reader.is_alive() else ["the sampler died"]
    wrong += [f"run {run_id} of ours never ended" for run_id in left]
    figures = {}
    for side in SIDES:
        boxes = [box for box in harness.nodes.boxes.values() if box.side == side]
        ran = [
            Process(*b.name, 0, 0, 0, 0, {}, b.begun, b.over or b.begun, None, None, [])
            for b in boxes
        ]
        evidence = Evidence(faults=faults.done, seen=harness.seen[side], processes=ran)
        wrong += statuses(evidence) if side == OURS else []
        said_last, over = harness.told[side], {box.name: box.over or box.begun for box in boxes}
        open_yet = [name for name in harness.began[side] if said_last.get(name) not in ENDED]
        evidence.lost = [over.get(name, harness.began[side][name]) for name in open_yet]
        evidence.doubled = doubled(evidence)
        figures[side] = figure(evidence)
        print(
            f"--- {side}, {harness.count} crawls; in the end it says "
            f"{dict(Counter(said_last.values()))}"
        )
        print("\n".join(lines(figures[side])))
    save(chosen.figures, **figures)
    print(
        "\n".join(
            [f"{harness.unread} samples were not taken", *(f"WRONG: {text}" for text in wrong)]
        )
    )
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

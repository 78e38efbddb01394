"""One poll of a run of many pods: its cost beyond the transfer, and the savings of the typed
client.

It uses the real API server, with pods that kwok's nodes pretend to run. Each reading is made by a
separate process, which has connected before the clock starts; its memory is the peak during the
reading minus the memory before. The baseline makes the same requests in the same pages, reads them
to their last byte and discards them.

``python -m benchmarks.kubernetes_poll PODS`` sets another number than 10,000. Only this name starts
it, because creating the pods takes minutes.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.sizes import size
from crawler_lifecycle.runner import contract
from tests.contracts.observer.kubernetes_harness import job_of
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.run_refs import run_ref

PODS = size(10_000, 50)
RUNS = size(500, 5)
TIMES = size(3, 1)
RUN = 7
CREATORS = 8
POLL_S = 900.0
#: What a runner leaves in each pod.
SUMMARY: dict[str, Any] = {
    **{
        "runner": "1",
        "exit": 0,
        "finish_reason": "finished",
        "finished_at": "2026-11-26T12:00:00.123456+00:00",
    },
    **{
        "resumable": False,
        "told_to_stop": False,
        "exit_code": 0,
        "pages": 1235,
        "items": 567,
        "errors": 3,
    },
    **{
        "bytes": 123456789,
        "peak_memory": 123456789,
        "started_at": "2026-11-26T11:00:00.123456+00:00",
    },
    "fields": {"items": 567, "shares": {f"field{n}": n / 8 for n in range(8)}},
}
#: The limits at the polling schedule's last step: what 500 resting runs may request from the
#: server.
TARGET_A_POLL, TARGET_A_SECOND = 2, 2.0


def make(cluster: Cluster, namespace: str, jobs: list[dict[str, Any]]) -> float:
    """Create Jobs, and wait until each has a pod on a node. Return the seconds that this took."""
    began, path = time.monotonic(), f"/apis/batch/v1/namespaces/{namespace}/jobs"
    context = ssl.create_default_context(cafile=str(cluster.plane.authority.certificate))
    local = threading.local()

    def post(body: dict[str, Any]) -> None:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPSConnection(
                cluster.api.removeprefix("https://"), context=context
            )
        head = {"Authorization": f"Bearer {cluster.token()}", "Content-Type": "application/json"}
        local.connection.request("POST", path, json.dumps(body), head)
        with local.connection.getresponse() as answer:
            text = answer.read()
        assert answer.status == 201, text[:500]

    with ThreadPoolExecutor(CREATORS) as threads:
        list(threads.map(post, jobs))
    while _begun(cluster, namespace) < len(jobs):
        time.sleep(2)
    return time.monotonic() - began


def _begun(cluster: Cluster, namespace: str) -> int:
    """Return the pods that are past Pending, as the server counts them."""
    path = f"/api/v1/namespaces/{namespace}/pods?limit=500&fieldSelector=status.phase!=Pending"
    count, token = 0, ""
    while True:
        page = cluster.admin.get(path + (f"&continue={token}" if token else ""))
        count += len(page["items"])
        token = page["metadata"].get("continue", "")
        if not token:
            return count


def requests(cluster: Cluster) -> dict[str, int]:
    """Return what the API server counts for all clients, by verb and resource, so only differences
    are meaningful.
    """
    found: dict[str, int] = {}
    for labels, value in re.findall(
        r"^apiserver_request_total\{(.*)\} (\S+)$", cluster.admin.text("/metrics"), re.M
    ):
        of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        key = f"{of['verb']} {of['resource']}" + (
            f"/{of['subresource']}" if of["subresource"] else ""
        )
        found[key] = found.get(key, 0) + int(float(value))
    return found


# --- in a process of its own


def child(kind: str, kubeconfig: str, namespace: str, pods: int) -> dict[str, float]:
    """Read once in a child process. Return seconds and MiB."""
    read = {"bare": _bare, "poll": _poll, "typed": _typed, "observer": _observed}[kind](
        kubeconfig, namespace, pods
    )
    gc.freeze()  # as a worker does
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    times, used = [], []
    for _ in range(TIMES):
        began, before_s = time.perf_counter(), time.process_time()
        read()
        times.append(time.perf_counter() - began)
        used.append(time.process_time() - before_s)
    peak = _memory("VmHWM") - before
    return {"seconds": median(times), "cpu": median(used), "mib": peak, "rss": _memory("VmRSS")}


def _memory(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+)", text, re.M)[1]) / 1024  # type: ignore[index]


def _api(kubeconfig: str, namespace: str) -> Any:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api

    return Api(kubeconfig=Path(kubeconfig), namespace=namespace)


def _bare(kubeconfig: str, namespace: str, pods: int) -> Callable[[], None]:
    from crawler_lifecycle.clusters.kubernetes import labels
    from crawler_lifecycle.clusters.kubernetes.client.objects import NamedObject, decode_page

    api = _api(kubeconfig, namespace)
    token = re.compile(rb'"continue":"([^"]*)"')

    def read() -> None:
        for path in (api.jobs_path(), api.pods_path()):
            query: dict[str, object] = {"labelSelector": labels.of_run(RUN), "limit": 500}
            while True:
                found = token.search(api.read(path, **query)[:4096])
                if found is None or not found[1]:
                    break
                query["continue"] = found[1].decode()

    decode_page(NamedObject, b'{"kind":"PodList","metadata":{},"items":[]}')
    api.get("/version")
    return read


def _poll(kubeconfig: str, namespace: str, pods: int) -> Callable[[], None]:
    from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
    from crawler_lifecycle.ports.runs import TaskRef

    api = _api(kubeconfig, namespace)
    cluster = KubernetesCluster(api)
    refs = [TaskRef(1000 + index, index, 1, None) for index in range(pods)]
    api.get("/version")

    def read() -> None:
        phases = {one.phase.name for one in cluster.poll(run_ref(RUN), refs).observations}
        assert phases == {"ENDED"}, phases

    return read


def _typed(kubeconfig: str, namespace: str, pods: int) -> Callable[[], None]:
    from kubernetes import client, config

    from crawler_lifecycle.clusters.kubernetes import labels

    config.load_kube_config(kubeconfig)
    core, batch = client.CoreV1Api(), client.BatchV1Api()
    client.VersionApi().get_code()

    def read() -> None:
        found = []
        for ask in (core.list_namespaced_pod, batch.list_namespaced_job):
            token = None
            while True:
                page = ask(namespace, label_selector=labels.of_run(RUN), limit=500, _continue=token)
                found += page.items
                token = page.metadata._continue
                if not token:
                    break
        assert len(found) == 2 * pods

    return read


def _observed(kubeconfig: str, namespace: str, pods: int) -> Callable[[], None]:
    from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver

    observer = KubernetesObserver(_api(kubeconfig, namespace))
    over = threading.Event()

    def read() -> None:
        """Measure a reading from the start until everything is read; only the first time counts."""
        if observer.health().up:
            return
        threading.Thread(
            target=observer.watch, args=(lambda *change: None, over), daemon=True
        ).start()
        while not observer.health().up:
            time.sleep(0.01)

    return read


# --- the figures


def _measure(kind: str, cluster: Cluster, namespace: str, pods: int) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.kubernetes_poll",
        kind,
        str(cluster.kubeconfig),
        namespace,
        str(pods),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, float] = json.loads(done.stdout)
    return found


def one_poll(cluster: Cluster, pods: int) -> None:
    """Measure a poll of a run whose tasks have all ended without a record: the maximum to read."""
    namespace = cluster.namespace("poll")
    life = {"crawl.test/run-for": "200ms", "crawl.test/message": contract.summary_text(SUMMARY)}
    seconds = make(cluster, namespace, [job_of(RUN, index, life) for index in range(pods)])
    print(
        f"made {pods} Jobs and their pods in {seconds:.0f} s ({pods / seconds:.0f} a second)",
        flush=True,
    )
    while cluster.admin.find(
        f"/api/v1/namespaces/{namespace}/pods?limit=1&fieldSelector=status.phase=Running"
    )["items"]:  # type: ignore[index]
        time.sleep(1)
    bare, poll, typed = (
        _measure(kind, cluster, namespace, pods) for kind in ("bare", "poll", "typed")
    )
    beyond, beyond_cpu = poll["seconds"] - bare["seconds"], poll["cpu"] - bare["cpu"]
    print(
        f"one poll of a run of {pods} pods: {poll['seconds']:.2f} s, bare transfer "
        f"{bare['seconds']:.2f} s, "
        f"beyond it {beyond:.2f} s; by our processor {poll['cpu']:.2f}, {bare['cpu']:.2f}, "
        f"{beyond_cpu:.2f} s "
        f"(target 0.5 s of 10,000); {poll['mib']:.0f} MiB (target 64), bare {bare['mib']:.0f}",
        flush=True,
    )
    more, more_cpu = typed["seconds"] - bare["seconds"], typed["cpu"] - bare["cpu"]
    by_clock = (
        f"({more / beyond:.1f} times ours)"
        if beyond > 0.05
        else "(ours: within the noise of the transfer)"
    )
    print(
        f"the typed client for both lists: {typed['seconds']:.2f} s, beyond the transfer "
        f"{more:.2f} s "
        f"{by_clock}, by the processor {more_cpu:.2f} s "
        f"({more_cpu / max(beyond_cpu, 0.001):.1f} times); {typed['mib']:.0f} MiB",
        flush=True,
    )
    seen = _measure("observer", cluster, namespace, pods)
    print(
        f"an observer of the same: {seen['mib']:.0f} MiB while it lists (process "
        f"{seen['rss']:.0f})",
        flush=True,
    )


def at_rest(cluster: Cluster, runs: int) -> None:
    """Poll many executing runs once each, counted by the API server itself, next to an observer."""
    from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
    from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
    from crawler_lifecycle.ports.runs import TaskRef

    namespace = cluster.namespace("rest")
    make(cluster, namespace, [job_of(run_id, 0, {}) for run_id in range(1, runs + 1)])
    api, over = _api(str(cluster.kubeconfig), namespace), threading.Event()
    observer, polls = KubernetesObserver(api), KubernetesCluster(api)
    watching = threading.Thread(
        target=observer.watch, args=(lambda *change: None, over), daemon=True
    )
    before = requests(cluster)
    watching.start()
    while not observer.health().up:
        time.sleep(0.05)
    began = time.monotonic()
    for run_id in range(1, runs + 1):
        polls.poll(run_ref(run_id), [TaskRef(run_id, 0, 1, None)])
    took = time.monotonic() - began
    after = requests(cluster)
    over.set()
    watching.join()
    wanted = ("LIST pods", "LIST jobs", "GET pods/log", "CONNECT pods/log", "LIST events")
    count = {key: after.get(key, 0) - before.get(key, 0) for key in wanted}
    lists = count["LIST pods"] + count["LIST jobs"] - 2  # two are the observer's
    total = sum(count.values()) - 2
    print(
        f"{runs} runs at rest: {lists / runs:.2f} lists a poll (target {TARGET_A_POLL}) and "
        f"{(total - lists) / runs:.2f} log tails and events; on the step of 15 minutes "
        f"{total / POLL_S:.2f} requests "
        f"a second in all (target {TARGET_A_SECOND:g}), of which an observer has {4 / 450:.2f}; "
        f"a poll took {took / runs * 1000:.0f} ms",
        flush=True,
    )


def measure(pods: int) -> None:
    """Measure everything on one cluster."""
    with Cluster(kwok=max(2, pods // 1800 + 2)) as cluster:
        at_rest(cluster, min(RUNS, pods))
        one_poll(cluster, pods)


async def main() -> None:
    """Run ``python -m benchmarks kubernetes-poll``."""
    await asyncio.to_thread(measure, PODS)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        measure(int(sys.argv[1]))
    else:
        print(json.dumps(child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))

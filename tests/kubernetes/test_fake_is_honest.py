"""The fake API server behaves like a real one: after the same operations, the product sees the
same.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, PositionExpired
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, NamedObject, decode
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.harnesses import Harness, until
from tests.support.kube_api import FakeApiServer
from tests.support.kube_objects import job

OURS = "crawler-lifecycle/end-not-recorded"
TRACKING = "batch.kubernetes.io/job-tracking"
FOREGROUND = {"propagationPolicy": "Foreground"}
_numbers = count(1)

Seen = Any
Scenario = Callable[[Harness], Seen]
SCENARIOS: dict[str, Scenario] = {}


def scenario(act: Scenario) -> Scenario:
    SCENARIOS[act.__name__] = act
    return act


@pytest.fixture
def real(kwok_cluster: Cluster) -> Iterator[Harness]:
    namespace = kwok_cluster.namespace(f"honest-{next(_numbers)}")
    api = Api(kubeconfig=kwok_cluster.kubeconfig, namespace=namespace)
    yield Harness(api, cluster=kwok_cluster)
    api.close()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Harness]:
    with FakeApiServer(tmp_path, namespace="honest-0") as server:
        api = Api(kubeconfig=server.kubeconfig(), namespace="honest-0")
        yield Harness(api, fake=server)
        api.close()


def _config(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return an object that no controller touches."""
    return {"metadata": {"name": name, "labels": labels or {}}}


def _names(found: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


# --- create ---------------------------------------------------------------------------------------


@scenario
def create(harness: Harness) -> Seen:
    made = decode_dict(harness.api.post(harness.api.jobs_path(), job("a", {"run": "1"})))
    template = made["spec"]["template"]
    return {
        "kind": (made["kind"], made["apiVersion"]),
        "meta": sorted(set(made["metadata"]) - {"managedFields"}),
        "labels": made["metadata"]["labels"],
        "pod labels": sorted(template["metadata"]["labels"]),
        "own uid": template["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]
        == made["metadata"]["uid"],
        "selector": sorted(made["spec"]["selector"]["matchLabels"]),
        "spec": {
            name: made["spec"][name]
            for name in ("backoffLimit", "completions", "parallelism", "suspend")
        },
        "status": made["status"],
    }


@scenario
def conflict(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("a"))
    return harness.outcome(
        lambda: harness.api.post(harness.api.jobs_path(), job("a", {"other": "yes"}))
    )


@scenario
def dry_run(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("there"))
    dry = decode_dict(harness.api.post(harness.api.jobs_path(), job("a"), dry_run=True))
    return [
        ("uid" in dry["metadata"], "resourceVersion" in dry["metadata"]),
        harness.outcome(lambda: harness.api.get(harness.api.jobs_path("a"))),
        harness.outcome(
            lambda: harness.api.post(harness.api.jobs_path(), job("there"), dry_run=True)
        ),
        harness.outcome(
            lambda: harness.api.patch(harness.api.jobs_path("there"), _labelled("x"), dryRun="All")
        ),
        "x" in decode(Job, harness.api.get(harness.api.jobs_path("there"))).metadata.labels,
    ]


@scenario
def creations_that_are_refused(harness: Harness) -> Seen:
    without = job("a")
    without["spec"]["template"]["spec"]["containers"] = []
    always = job("a")
    always["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    elsewhere = job("a")
    elsewhere["metadata"]["namespace"] = "default"
    seen = [
        harness.outcome(lambda body=body: harness.api.post(harness.api.jobs_path(), body))[:3]
        for body in (
            job("Upper"),
            job("a/b"),
            job(""),
            without,
            always,
            elsewhere,
            {"metadata": {"name": "a"}},
        )
    ]
    missing = Harness(harness.api, harness.fake, harness.cluster)
    path = harness.api.jobs_path().replace(harness.api.namespace, "no-such-namespace")
    return [*seen, missing.outcome(lambda: harness.api.post(path, job("a")))]


@scenario
def quota(harness: Harness) -> Seen:
    if harness.fake is not None:
        harness.fake.routes.jobs_quota = 1
    else:
        assert harness.cluster is not None
        harness.cluster.quota(harness.api.namespace, "crawls", {"count/jobs.batch": "1"})
    harness.api.post(harness.api.jobs_path(), job("a"))
    # Admission comes before storage: the name of the very Job that exhausts the quota gets the same
    # response.
    return [
        harness.outcome(lambda name=name: harness.api.post(harness.api.jobs_path(), job(name)))
        for name in ("b", "a")
    ]


@scenario
def namespace_that_is_being_deleted(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("a", finalizers=[OURS]))
    harness.running("a")
    harness.api.delete(f"/api/v1/namespaces/{harness.api.namespace}", FOREGROUND)
    until(
        lambda: (
            harness.get(f"/api/v1/namespaces/{harness.api.namespace}")["status"]["phase"]
            == "Terminating"
        )
    )
    until(lambda: "deletionTimestamp" in harness.pod("a")["metadata"])
    refused = harness.outcome(lambda: harness.api.post(harness.api.jobs_path(), job("b")))
    pod = until(lambda: (pod := harness.pod("a"))["status"]["phase"] == "Failed" and pod)
    held = [name for name in pod["metadata"]["finalizers"] if name != TRACKING]
    harness.api.patch(
        harness.api.pods_path(pod["metadata"]["name"]), {"metadata": {"finalizers": None}}
    )
    return refused, held


# --- lists ----------------------------------------------------------------------------------------


@scenario
def selectors(harness: Harness) -> Seen:
    path = harness.path("configmaps")
    for name, labels in {
        "a": {"x": "1"},
        "b": {"x": "2", "done": "yes"},
        "c": {"done": "yes"},
        "d": {},
    }.items():
        harness.api.post(path, _config(f"m-{name}", labels))
    wanted = (
        "x=1",
        "x==1",
        "x!=1",
        "x",
        "!x",
        "x,!done",
        "x in (1,2)",
        "x notin (1)",
        "x=1,x=2",
        "",
        "x in (1),!done",
    )
    seen = {
        label: [n for n in _names(harness.get(path, labelSelector=label)) if n.startswith("m-")]
        for label in wanted
    }
    bad = [
        harness.outcome(lambda s=s: harness.api.get(path, labelSelector=s))[:3]
        for s in ("x===1", "a b", "=", "x in 1")
    ]
    return seen, bad


@scenario
def field_selectors(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("a"))
    harness.api.post(harness.api.jobs_path(), job("b"))
    pod = harness.running("a")["metadata"]["name"]
    pods, jobs = harness.api.pods_path(), harness.api.jobs_path()
    if harness.fake is None:
        until(lambda: harness.pod("b")["status"]["phase"] == "Running")
    else:
        harness.fake.pod_starts("b")
    return {
        "name": len(harness.get(pods, fieldSelector=f"metadata.name={pod}")["items"]),
        "phase": len(harness.get(pods, fieldSelector="status.phase=Running")["items"]),
        "not": len(harness.get(pods, fieldSelector="status.phase!=Running")["items"]),
        "job": _names(harness.get(jobs, fieldSelector="metadata.name=a")),
        "unknown": harness.outcome(lambda: harness.api.get(pods, fieldSelector="spec.colour=red")),
    }


@scenario
def paging(harness: Harness) -> Seen:
    path = harness.path("configmaps")
    for index in range(5):
        harness.api.post(path, _config(f"m-{index}", {"page": "me"}))
    if harness.fake is None:  # every namespace of a real cluster has its own
        until(lambda: len(harness.get(path)["items"]) == 6)
    else:
        harness.api.post(path, _config("kube-root-ca.crt"))
    plain, chosen = [], []
    for into, query in ((plain, {}), (chosen, {"labelSelector": "page=me"})):
        token: str | None = None
        versions = set()
        while True:
            size = (2, 1, 3)[len(into)]  # a page may have another size than the previous one
            page = harness.get(path, limit=size, **query, **({"continue": token} if token else {}))
            meta = page["metadata"]
            versions.add(meta["resourceVersion"])
            into.append(
                (page["kind"], _names(page), "continue" in meta, meta.get("remainingItemCount"))
            )
            if not (token := meta.get("continue")):
                break
            # The version of the list is too old.
            harness.api.patch(f"{path}/m-4", _labelled(f"x{len(into)}"))
        into.append(len(versions))
    bad = harness.outcome(lambda: harness.api.get(path, limit=2, **{"continue": "nonsense"}))[:3]
    whole = harness.api.listing(path, NamedObject, limit=2)
    return plain, chosen, bad, [found.metadata.name for found in whole.items]


@scenario
def empty_list(harness: Harness) -> Seen:
    found = harness.get(harness.api.jobs_path())
    return (
        found["kind"],
        found["items"],
        sorted(found["metadata"]),
        len(harness.api.listing(harness.api.jobs_path(), Job).items),
    )


# --- watches --------------------------------------------------------------------------------------


@scenario
def watch_order(harness: Harness) -> Seen:
    path = harness.path("configmaps")
    version = harness.api.listing(path, NamedObject).resource_version
    seen = []
    with harness.api.watch(path, labels="run=1", resource_version=version, timeout_s=30) as stream:
        harness.api.post(path, _config("other"))
        harness.api.post(path, _config("a", {"run": "1"}))
        harness.api.patch(f"{path}/a", _labelled("x"))
        harness.api.patch(f"{path}/a", {"metadata": {"labels": {"run": None}}})
        harness.api.patch(f"{path}/a", {"metadata": {"labels": {"run": "1"}}})
        harness.api.delete(f"{path}/a", {"propagationPolicy": "Background"})
        harness.api.post(path, _config("b", {"run": "1"}))
        for event in stream:
            if event.type == "BOOKMARK":
                continue
            found = decode(NamedObject, event.object)
            same = (
                json.loads(bytes(event.object))["metadata"]["resourceVersion"]
                == event.resource_version
            )
            seen.append((event.type, found.metadata.name, dict(found.metadata.labels), same))
            if found.metadata.name == "b":
                break
        again = event.resource_version
    with harness.api.watch(path, labels="run=1", resource_version=again, timeout_s=30) as stream:
        harness.api.post(path, _config("c", {"run": "1"}))
        seen.append(
            next((event.type, decode(NamedObject, event.object).metadata.name) for event in stream)
        )
    return seen


@scenario
def bookmarks_before_the_servers_end(harness: Harness) -> Seen:
    """Return the bookmarks up to two seconds before the server ends the watch, if something
    happened since; a busy server may send none.
    """
    path = harness.path("configmaps")
    version = harness.api.listing(path, NamedObject).resource_version
    for number in range(10):
        with harness.api.watch(
            path, labels="run=1", resource_version=version, timeout_s=5
        ) as stream:
            harness.api.post(path, _config(f"other-{number}"))
            events = list(stream)
        if events:
            return {event.type for event in events}, events[-1].resource_version != version
    raise AssertionError("a bookmark did not come within ten watches")


@scenario
def watch_closed_by_another_thread(harness: Harness) -> Seen:
    version = harness.api.listing(harness.api.jobs_path(), Job).resource_version
    stream = harness.api.watch(harness.api.jobs_path(), resource_version=version, timeout_s=60)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(event.type for event in stream))
    reader.start()
    stream.close()
    reader.join(60)
    return reader.is_alive(), seen


# --- delete ---------------------------------------------------------------------------------------


@scenario
def deletions_of_another_object(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("a"))
    other = {"uid": "00000000-0000-0000-0000-000000000000"}
    return [
        harness.outcome(
            lambda: harness.api.delete(
                harness.api.jobs_path("a"), {**FOREGROUND, "preconditions": other}
            )
        ),
        "deletionTimestamp" in harness.get(harness.api.jobs_path("a"))["metadata"],
        harness.outcome(
            lambda: harness.api.delete(
                harness.api.jobs_path("b"), {**FOREGROUND, "preconditions": other}
            )
        ),
    ]


@scenario
def foreground_deletion_with_our_finalizer(harness: Harness) -> Seen:
    made = decode(
        Job, harness.api.post(harness.api.jobs_path(), job("a", {"run": "1"}, finalizers=[OURS]))
    )
    name = harness.running("a")["metadata"]["name"]
    options = {**FOREGROUND, "preconditions": {"uid": made.metadata.uid}}
    answer = decode_dict(harness.api.delete(harness.api.jobs_path("a"), options))
    pod = until(lambda: (pod := harness.pod("a"))["status"]["phase"] == "Failed" and pod)
    held = harness.get(harness.api.jobs_path("a"))
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    again = harness.outcome(lambda: harness.api.delete(harness.api.jobs_path("a"), options))
    new = harness.outcome(
        lambda: harness.api.patch(
            harness.api.pods_path(name), {"metadata": {"finalizers": [OURS, "crawl.test/more"]}}
        )
    )
    seen = [
        (
            answer["kind"],
            "deletionTimestamp" in answer["metadata"],
            answer["metadata"]["finalizers"],
        ),
        (held["metadata"]["finalizers"], "deletionTimestamp" in held["metadata"]),
        (
            [f for f in pod["metadata"]["finalizers"] if f != TRACKING],
            "deletionTimestamp" in pod["metadata"],
        ),
        ended["exitCode"],
        again,
        (*new[:3], new[4].split(": Forbidden: ")[1].split(", metadata.")[0].rstrip("]") + "]"),
    ]
    harness.api.patch(harness.api.pods_path(name), {"metadata": {"finalizers": None}})
    return [
        *seen,
        harness.gone(harness.api.pods_path(name)),
        harness.gone(harness.api.jobs_path("a")),
    ]


@scenario
def background_deletion(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("a"))
    pod = harness.running("a")["metadata"]["name"]
    answer = decode_dict(
        harness.api.delete(harness.api.jobs_path("a"), {"propagationPolicy": "Background"})
    )
    seen = answer["kind"], answer.get("status"), sorted(answer.get("details", {}))
    return seen, harness.gone(harness.api.jobs_path("a")), harness.gone(harness.api.pods_path(pod))


@scenario
def deletion_without_a_policy_leaves_the_pods(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("a"))
    pod = harness.running("a")["metadata"]["name"]
    harness.api.delete(harness.api.jobs_path("a"), {})
    gone = harness.gone(harness.api.jobs_path("a"))
    left = harness.get(harness.api.pods_path(pod))
    return gone, left["metadata"].get("ownerReferences"), "deletionTimestamp" in left["metadata"]


@scenario
def pod_that_is_deleted(harness: Harness) -> Seen:
    harness.api.post(harness.api.jobs_path(), job("a", finalizers=[OURS], grace_s=30))
    name = harness.running("a")["metadata"]["name"]
    if harness.fake is not None:
        harness.fake.controllers.makes_pods = False
    answer = decode_dict(harness.api.delete(harness.api.pods_path(name), {"gracePeriodSeconds": 5}))
    return answer["kind"], answer["metadata"]["deletionGracePeriodSeconds"]


# --- patch ----------------------------------------------------------------------------------------


def _labelled(name: str) -> dict[str, Any]:
    return {"metadata": {"labels": {name: "yes"}}}


@scenario
def patches_that_do_not_fit(harness: Harness) -> Seen:
    made = json.loads(harness.api.post(harness.api.jobs_path(), job("a", {"x": "1"})))["metadata"][
        "resourceVersion"
    ]
    path, missing = harness.api.jobs_path("a"), harness.api.jobs_path("missing")
    other = "00000000-0000-0000-0000-000000000000"
    until(lambda: harness.get(path)["metadata"]["resourceVersion"] != made)
    return [
        harness.outcome(lambda: harness.api.patch(missing, _labelled("x"))),
        harness.outcome(
            lambda: harness.api.patch(path, {"metadata": {"uid": other, "labels": {"x": "2"}}})
        )[:3],
        harness.outcome(
            lambda: harness.api.patch(
                path, {"metadata": {"resourceVersion": "1", "labels": {"x": "2"}}}
            )
        ),
        harness.outcome(lambda: harness.api.patch(path, _labelled("fits"))),
        sorted(decode(Job, harness.api.get(path)).metadata.labels),
    ]


@scenario
def finalizers_as_a_set(harness: Harness) -> Seen:
    path = harness.path("configmaps", "a")
    harness.api.post(
        harness.path("configmaps"),
        {"metadata": {"name": "a", "finalizers": ["crawl.test/x", "crawl.test/y"]}},
    )

    def patched(**metadata: Any) -> Any:
        harness.api.patch(path, {"metadata": metadata})
        return harness.get(path)["metadata"].get("finalizers")

    take = "$deleteFromPrimitiveList/finalizers"
    return [
        patched(**{take: ["crawl.test/x"]}),
        patched(**{take: ["crawl.test/missing"]}),
        patched(finalizers=["crawl.test/z"]),
        harness.outcome(
            lambda: patched(uid="00000000-0000-0000-0000-000000000000", **{take: ["crawl.test/z"]})
        )[:3],
        patched(**{take: ["crawl.test/y", "crawl.test/z"]}),
    ]


# --- the rest -------------------------------------------------------------------------------------


@scenario
def logs_that_are_not_there(harness: Harness) -> Seen:
    waiting = job("a")
    waiting["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such-node"}
    harness.api.post(harness.api.jobs_path(), waiting)
    name = harness.pod("a")["metadata"]["name"]
    return [
        # No node yet: empty, but no error.
        harness.api.read(harness.api.pods_path(name, "log"), container="crawler"),
        harness.outcome(
            lambda: harness.api.read(harness.api.pods_path(name, "log"), container="other")
        ),
        harness.outcome(lambda: harness.api.read(harness.api.pods_path("missing", "log"))),
    ]


@scenario
def objects_and_resources_that_are_not_there(harness: Harness) -> Seen:
    return [
        harness.outcome(lambda: harness.api.get(harness.api.jobs_path("missing"))),
        harness.outcome(lambda: harness.api.get(harness.api.pods_path("missing"))),
        harness.outcome(lambda: harness.api.get("/apis/no.such/v1/namespaces/x/things"))[:2],
        harness.outcome(lambda: harness.api.get("/api/v1/namespaces/no-such-namespace")),
    ]


@scenario
def rights_that_are_missing(harness: Harness) -> Seen:
    if harness.fake is not None:
        for verb, resource in (
            ("list", "pods"),
            ("create", "jobs"),
            ("get", "pods/log"),
            ("watch", "pods"),
        ):
            harness.fake.deny(verb, resource)
        api = harness.api
    else:
        assert harness.cluster is not None
        user = f"system:serviceaccount:{harness.api.namespace}:nobody"
        api = Api(kubeconfig=harness.cluster.kubeconfig_of(user), namespace=harness.api.namespace)
    may = {"verb": "list", "resource": "pods", "namespace": api.namespace}
    review = decode_dict(
        api.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {"spec": {"resourceAttributes": may}},
        )
    )
    return [
        harness.outcome(lambda: api.get(api.pods_path())),
        harness.outcome(lambda: api.post(api.jobs_path(), job("a"))),
        harness.outcome(lambda: api.read(api.pods_path("a", "log"))),
        harness.outcome(lambda: api.watch(api.pods_path(), resource_version="1", timeout_s=5)),
        review["status"]["allowed"],
    ]


@scenario
def credentials_that_nobody_knows(harness: Harness) -> Seen:
    import json

    path = harness.cluster.kubeconfig if harness.cluster else harness.fake.kubeconfig()  # type: ignore[union-attr]
    if harness.fake is not None:
        harness.fake.tokens = {"test"}
        config = json.loads(path.read_text())
    else:
        import yaml

        config = yaml.safe_load(path.read_text())
    for user in config["users"]:
        user["user"] = {"token": "nobody-knows-this"}
    strange = path.with_name("stranger")
    strange.write_text(json.dumps(config))
    api = Api(kubeconfig=strange, namespace=harness.api.namespace)
    return harness.outcome(lambda: api.get(api.pods_path()))


def decode_dict(data: bytes) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.json.decode(data)
    return found


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_both_answer_alike(name: str, fake: Harness, real: Harness) -> None:
    assert SCENARIOS[name](fake) == SCENARIOS[name](real)


# --- what is forgotten ----------------------------------------------------------------------------


def _forgotten(harness: Harness, forget: Callable[[], None], restart: Callable[[], None]) -> Seen:
    """Return a continue token and a watch position, once the server no longer remembers them."""
    path = harness.path("configmaps")
    for index in range(4):
        harness.api.post(path, _config(f"m-{index}"))
    page = harness.get(path, limit=1)
    token = page["metadata"]["continue"]
    forget()

    def expired() -> Any:
        seen = harness.outcome(lambda: harness.api.get(path, limit=1, **{"continue": token}))
        return seen if seen[0] == "Expired" else None

    def too_old() -> Any:
        try:
            with harness.api.watch(path, resource_version="1", timeout_s=1) as stream:
                next(stream, None)
        except PositionExpired as error:
            return error.status, error.reason, re.sub(r"\d+", "N", error.words)
        except ApiError:
            return None  # it is being started
        return None

    seen = until(expired, 150)
    # A watch is served from memory, which goes back to the start of the server, however old that
    # is.
    restart()
    return seen, until(too_old, 150)


def _restart(busy: threading.Event, writer: threading.Thread, cluster: Cluster) -> None:
    busy.set()
    writer.join(30)
    cluster.restart("kube-apiserver")


@pytest.mark.slow
def test_both_forget_alike(fake: Harness, kube_binaries: None) -> None:
    assert fake.fake is not None
    store = fake.fake.store
    with Cluster(kwok=1, extra={"kube-apiserver": ["--etcd-compaction-interval=1s"]}) as cluster:
        namespace = cluster.namespace("forgetful")
        api = Api(kubeconfig=cluster.kubeconfig, namespace=namespace)
        harness = Harness(api, cluster=cluster)
        busy = threading.Event()

        def write() -> None:  # compaction forgets everything before the last poll but one
            number = 0
            while not busy.wait(0.1):
                number += 1
                api.post(harness.path("configmaps"), _config(f"z-{number}"))

        writer = threading.Thread(target=write)
        try:
            theirs = _forgotten(harness, writer.start, lambda: _restart(busy, writer, cluster))
        finally:
            busy.set()
            writer.join(30)
            api.close()
    assert _forgotten(fake, store.compact, lambda: None) == theirs
    assert None not in theirs


# --- what only a kubelet says ---------------------------------------------------------------------


def _logs_while_waiting(harness: Harness) -> Seen:
    never = job("a")
    never["spec"]["template"]["spec"]["containers"][0] |= {
        "image": "crawl.test/none:1",
        "imagePullPolicy": "Never",
    }
    harness.api.post(harness.api.jobs_path(), never)
    if harness.fake is not None:
        harness.fake.pod_waits("a", "ErrImageNeverPull")

    def reason() -> Any:
        told = harness.pod("a")["status"].get("containerStatuses", [{}])[0]
        return told.get("state", {}).get("waiting", {}).get("reason") == "ErrImageNeverPull"

    assert until(reason)
    path = harness.api.pods_path(harness.pod("a")["metadata"]["name"], "log")
    return [
        harness.outcome(lambda: harness.api.read(path, container="crawler")),
        harness.outcome(lambda: harness.api.read(path, container="other")),
    ]


def test_a_container_that_waits_has_no_log(fake: Harness, real_cluster: Cluster) -> None:
    namespace = real_cluster.namespace("waiting")
    api = Api(kubeconfig=real_cluster.kubeconfig, namespace=namespace)
    try:
        assert _logs_while_waiting(fake) == _logs_while_waiting(Harness(api, cluster=real_cluster))
    finally:
        api.close()

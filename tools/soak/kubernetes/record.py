"""The truth about a cluster: every version of every Job and pod that etcd has had, and who sent
which request to the API server.

It is read from etcd's own history, which no restart interrupts, and from the audit log of the API
server. It uses no code of the service, neither to reach the API server nor to read a pod.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]
OURS = "crawler-lifecycle"
FINALIZER = f"{OURS}/end-not-recorded"
SETTLED = f"{OURS}/settled"
#: Options with which the API server writes objects as text, keeps every version, and logs who did
#: what.
POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, delete, deletecollection, patch, update]
  resources:
  - {group: "", resources: [pods, pods/eviction, pods/status]}
  - {group: batch, resources: [jobs]}
- level: None
"""


def flags(folder: Path) -> Mapping[str, list[str]]:
    """Return the options with which a cluster must be started so that it can be recorded."""
    policy = folder / "audit-policy.yaml"
    policy.write_text(POLICY)
    return {
        "kube-apiserver": [
            "--etcd-compaction-interval=0",
            "--storage-media-type=application/json",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={folder / 'audit.log'}",
        ]
    }


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an object. ``object`` is ``None`` if the object was removed."""

    revision: int
    seen_at: datetime
    """When the recorder was told: never before it was true."""
    object: Json | None


@dataclass
class Story:
    """One object, from its creation to its removal."""

    kind: str
    name: str
    uid: str
    versions: list[Version] = field(default_factory=list)

    @property
    def first(self) -> Json:
        found = self.versions[0].object
        assert found is not None
        return found

    @property
    def there(self) -> list[tuple[Version, Json]]:
        """Return the versions in which the object exists."""
        return [(v, v.object) for v in self.versions if v.object is not None]

    @property
    def last(self) -> Json:
        return self.there[-1][1]

    @property
    def removed(self) -> Version | None:
        return self.versions[-1] if self.versions[-1].object is None else None

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.first["metadata"].get("labels", {})
        return found

    @property
    def key(self) -> tuple[int, int, int]:
        """Return the run, the index and the attempt."""
        return (
            int(self.labels[f"{OURS}/run"]),
            int(self.labels[f"{OURS}/task"]),
            int(self.labels[f"{OURS}/attempt"]),
        )


@dataclass
class PodStory(Story):
    """A pod."""

    @property
    def job_uid(self) -> str:
        return self.labels["batch.kubernetes.io/controller-uid"]

    @property
    def began(self) -> Version | None:
        """Return the first version in which the crawler executes or has executed."""
        return next(
            (v for v, o in self.there if "running" in state(o) or "terminated" in state(o)), None
        )

    @property
    def over(self) -> Version | None:
        """Return the first version in which the pod has ended, or its removal if it was removed
        before.
        """
        return next((v for v, o in self.there if is_over(o)), self.removed)

    @property
    def done(self) -> Json | None:
        """Return how the crawler's container ended, as the node reported it."""
        return next(
            (state(o)["terminated"] for _, o in self.there if "terminated" in state(o)), None
        )

    @property
    def executes(self) -> bool:
        """Return whether the pod executes now."""
        return self.began is not None and self.over is None

    def let_go(self) -> tuple[Version, bool] | None:
        """Return the version in which our finalizer was gone, and whether our service removed it."""
        held = False
        for version, found in self.there:
            has = FINALIZER in found["metadata"].get("finalizers", [])
            if held and not has:
                return version, SETTLED in found["metadata"].get("labels", {})
            held = held or has
        return None


def state(pod: Json) -> Json:
    """Return the state of the crawler's container."""
    found = [
        s.get("state", {})
        for s in pod.get("status", {}).get("containerStatuses", [])
        if s["name"] == "crawler"
    ]
    return {key: told for key, told in found[0].items() if told is not None} if found else {}


def is_over(pod: Json) -> bool:
    """Return whether the cluster reports that the pod has ended."""
    return "terminated" in state(pod) or pod["status"].get("phase") in ("Succeeded", "Failed")


def moment(text: str) -> datetime:
    """Parse a time of the cluster."""
    return datetime.fromisoformat(text).astimezone(UTC)


class Recorder:
    """Follows etcd from the beginning of a namespace, as a context manager."""

    def __init__(self, etcd: str, namespace: str, trail: Path) -> None:
        self._etcd, self._namespace, self._trail = etcd, namespace, trail
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._stories: dict[str, Story] = {}
        self._now: dict[tuple[str, str], str] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(k,), daemon=True) for k in ("jobs", "pods")
        ]

    def __enter__(self) -> Recorder:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    @property
    def pods(self) -> list[PodStory]:
        """Return all Jobs that have existed, in the order of their creation."""
        with self._lock:
            return [s for s in self._stories.values() if isinstance(s, PodStory)]

    @property
    def jobs(self) -> list[Story]:
        """Return all pods that have existed, in the order of their creation."""
        with self._lock:
            return [s for s in self._stories.values() if not isinstance(s, PodStory)]

    def trail(self, *names: str) -> list[str]:
        """Return who did what to objects whose name begins with this text, as text."""
        told = []
        for line in self._trail.read_text().splitlines() if self._trail.exists() else []:
            try:
                one = json.loads(line)
            except ValueError:  # The line was cut by a SIGKILL.
                continue
            what = one.get("objectRef", {})
            if what.get("namespace") == self._namespace and str(what.get("name", "")).startswith(
                names
            ):
                sub = f"/{what['subresource']}" if "subresource" in what else ""
                who = f"{one['user']['username']} ({one.get('userAgent', '?').split('/')[0]})"
                code = one.get("responseStatus", {}).get("code")
                at = one["requestReceivedTimestamp"][11:23]
                told.append(
                    f"{at} {one['verb']} {what['resource']}{sub}/{what['name']} by {who}: {code}"
                )
        return told

    def _follow(self, kind: str) -> None:
        revision = 1
        while not self._over.is_set():
            try:
                for at, key, value in self._events(kind, revision):
                    revision = at + 1 if key is None else max(revision, at)
                    if key is not None:
                        self._note(kind, at, key.rsplit("/", 1)[1], value)
            # Etcd is down, or sent nothing for a moment. Its history is read later.
            except (OSError, ValueError):
                self._over.wait(0.1)

    def _events(self, kind: str, revision: int) -> Iterator[tuple[int, str | None, Json | None]]:
        """Yield (revision, key, object), with a key of ``None`` after each group, when everything
        up to this revision was sent.
        """
        prefix = f"/registry/{kind}/{self._namespace}/"
        asked = {
            "key": _b64(prefix),
            "range_end": _b64(prefix[:-1] + "0"),
            "start_revision": revision,
        }
        body = json.dumps({"create_request": asked}).encode()
        request = urllib.request.Request(f"{self._etcd}/v3/watch", data=body, method="POST")
        with urllib.request.urlopen(request, timeout=5) as answer:
            for line in answer:
                result = json.loads(line)["result"]
                assert "compact_revision" not in result, "etcd must keep its history"
                events = result.get("events", [])
                for event in events:
                    kv = event["kv"]
                    gone = event.get("type") == "DELETE"
                    value = None if gone else json.loads(base64.b64decode(kv["value"]))
                    yield int(kv["mod_revision"]), base64.b64decode(kv["key"]).decode(), value
                if events:
                    yield int(events[-1]["kv"]["mod_revision"]), None, None

    def _note(self, kind: str, revision: int, name: str, value: Json | None) -> None:
        at = datetime.now(UTC)
        with self._lock:
            if value is None:
                uid = self._now.get((kind, name))
            else:
                uid = self._now[kind, name] = value["metadata"]["uid"]
            if uid is None:
                return
            made = PodStory if kind == "pods" else Story
            story = self._stories.setdefault(uid, made(kind, name, uid))
            if not story.versions or story.versions[-1].revision < revision:
                story.versions.append(Version(revision, at, value))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

"""Objects with versions and their complete history: lists of any version, and watches from any
version.
"""

from __future__ import annotations

import bisect
import copy
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.kube_api import problems
from tests.support.kube_api.selectors import Match

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace ("" for what has none) and name."""


@dataclass(frozen=True)
class Kind:
    """A resource of the API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Kind("", "v1", "pods", "Pod")
EVENTS = Kind("", "v1", "events", "Event")
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
JOBS = Kind("batch", "v1", "jobs", "Job")
KINDS = (
    *(PODS, EVENTS, NAMESPACES, JOBS),
    *(
        Kind("", "v1", plural, kind)
        for plural, kind in (("configmaps", "ConfigMap"), ("secrets", "Secret"))
    ),
    Kind("", "v1", "serviceaccounts", "ServiceAccount"),
    Kind("", "v1", "resourcequotas", "ResourceQuota"),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    Kind("metrics.k8s.io", "v1beta1", "pods", "PodMetrics"),
)


@dataclass(frozen=True)
class Change:
    """One write. Objects in it are never changed again."""

    version: int
    kind: Kind
    key: Key
    before: Object | None
    after: Object | None
    """``None``: it is gone; ``last`` is then how it was last, with the version of its deletion."""
    last: Object


def stamp(at: datetime | None = None) -> str:
    """Return a time as the API writes it: whole seconds, UTC."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """The server's data. Every method may be called from any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 100
        self.compacted = 0
        """Nothing up to this version is remembered any more."""
        self.changes: list[Change] = []
        self._objects: dict[Kind, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self._past: tuple[Kind, int, dict[Key, Object]] | None = None
        self.born: dict[str, int] = {}
        """The version at which an object was made, by its uid: times have whole seconds."""
        self.after_write: list[Callable[[Change], None]] = []
        """What controllers do about a change; called with the lock held."""

    # --- reading ----------------------------------------------------------------------------------

    def get(self, kind: Kind, key: Key) -> Object:
        """Return a copy. Raises ``Problem`` (404)."""
        with self.changed:
            found = self._objects[kind].get(key)
            if found is None:
                raise problems.not_found(kind.plural, kind.group, key[1])
            return copy.deepcopy(found)

    def find(self, kind: Kind, match: Match | None = None) -> list[Object]:
        """Return copies of all that match, in the order of their names."""
        with self.changed:
            found = self._objects[kind]
            return [
                copy.deepcopy(found[key])
                for key in sorted(found)
                if match is None or match(found[key])
            ]

    def at(self, kind: Kind, version: int) -> dict[Key, Object]:
        """Return all objects of a kind as they were at a version; not to be changed."""
        with self.changed:
            if version >= self.version:
                return dict(self._objects[kind])
            if self._past is not None and self._past[:2] == (kind, version):
                return self._past[2]
            past: dict[Key, Object] = {}
            for change in self.changes:
                if change.version > version:
                    break
                if change.kind is kind:
                    past.pop(change.key, None)
                    if change.after is not None:
                        past[change.key] = change.after
            self._past = (kind, version, past)
            return past

    def since(self, kind: Kind, version: int) -> Iterator[Change]:
        """Return what happened to objects of a kind after a version."""
        with self.changed:
            first = bisect.bisect_right(self.changes, version, key=lambda change: change.version)
            return iter([change for change in self.changes[first:] if change.kind is kind])

    def wait(self, version: int, seconds: float) -> int:
        """Wait until something happened after a version, or the time is over. Returns the present
        version.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.version > version, seconds)
            return self.version

    # --- writing ----------------------------------------------------------------------------------

    def create(self, kind: Kind, key: Key, obj: Object) -> Object:
        """Store a new object, with uid and time. Raises ``Problem`` (409)."""
        with self.changed:
            if key in self._objects[kind]:
                raise problems.already_exists(kind.plural, kind.group, key[1])
            obj = copy.deepcopy(obj)
            obj = {"kind": kind.kind, "apiVersion": kind.api_version, **obj}
            meta = obj["metadata"]
            meta.update(
                name=key[1], uid=meta.get("uid") or str(uuid.uuid4()), creationTimestamp=stamp()
            )
            if kind.namespaced:
                meta["namespace"] = key[0]
            self.born[meta["uid"]] = self.version + 1
            return self._put(kind, key, None, obj)

    def update(self, kind: Kind, key: Key, change: Callable[[Object], Any]) -> Object:
        """Change an object in place. It disappears if nothing holds it any more. Raises ``Problem``
        (404).
        """
        with self.changed:
            before = self._objects[kind].get(key)
            if before is None:
                raise problems.not_found(kind.plural, kind.group, key[1])
            after = copy.deepcopy(before)
            change(after)
            if after == before:
                return copy.deepcopy(before)
            meta = after["metadata"]
            if (
                "deletionTimestamp" in meta
                and not meta.get("finalizers")
                and not meta.get("deletionGracePeriodSeconds")
            ):
                return self._remove(kind, key, after)
            return self._put(kind, key, before, after)

    def replace_all(self, kind: Kind, key: Key, obj: Object) -> Object:
        """Replace the object by this one, whatever it was."""
        return self.update(
            kind, key, lambda found: (found.clear(), found.update(copy.deepcopy(obj)))
        )

    def remove(self, kind: Kind, key: Key) -> Object:
        """Remove an object at once, whatever holds it. Raises ``Problem`` (404)."""
        with self.changed:
            return self._remove(kind, key, self.get(kind, key))

    def compact(self) -> None:
        """Forget the past: older continue tokens and versions of watches become invalid."""
        with self.changed:
            self.compacted = self.version
            self.version += 1

    def restore(self, version: int) -> None:
        """Return to a version, as after a restored backup: versions go back, and are used again."""
        with self.changed:
            for kind in self._objects:
                self._objects[kind] = dict(self.at(kind, version))
            self.changes = [change for change in self.changes if change.version <= version]
            self.version, self._past = version, None
            self.changed.notify_all()

    def _put(self, kind: Kind, key: Key, before: Object | None, after: Object) -> Object:
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        self._objects[kind][key] = after
        self._tell(Change(self.version, kind, key, before, after, after))
        return copy.deepcopy(after)

    def _remove(self, kind: Kind, key: Key, last: Object) -> Object:
        before = self._objects[kind].pop(key)
        self.version += 1
        last = copy.deepcopy(last)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._tell(Change(self.version, kind, key, before, None, last))
        return copy.deepcopy(last)

    def _tell(self, change: Change) -> None:
        self.changes.append(change)
        self._past = None
        for act in self.after_write:
            act(change)
        self.changed.notify_all()

    def begin_deletion(
        self, kind: Kind, key: Key, grace_s: int, finalizer: str | None
    ) -> Object | None:
        """Mark an object as being deleted, or shorten its grace period; ``None`` if it disappears
        at once.
        """
        with self.changed:
            found = self.get(kind, key)
            meta = found["metadata"]
            if finalizer and finalizer not in meta.get("finalizers", []):
                meta["finalizers"] = [*meta.get("finalizers", []), finalizer]
            if "deletionTimestamp" not in meta or grace_s < meta.get(
                "deletionGracePeriodSeconds", 0
            ):
                meta["deletionTimestamp"] = stamp(datetime.now(UTC) + timedelta(seconds=grace_s))
                meta["deletionGracePeriodSeconds"] = grace_s
            gone = not meta.get("finalizers") and not grace_s
            marked = self.replace_all(kind, key, found)
            return None if gone else marked

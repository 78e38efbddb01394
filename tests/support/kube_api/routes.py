"""The requests that the server understands, and what it does."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.support.kube_api import patches, problems, selectors
from tests.support.kube_api.controllers import (
    FOREGROUND,
    ORPHAN,
    Controllers,
    default_job,
    finished,
    key_of,
)
from tests.support.kube_api.driver import Driver
from tests.support.kube_api.faults import Fault, Stale
from tests.support.kube_api.problems import Problem
from tests.support.kube_api.store import JOBS, KINDS, NAMESPACES, PODS, Key, Kind, Object, Store

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
_REVIEWS = "/apis/authorization.k8s.io/v1"
_REVIEW = Kind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass
class Wanted:
    """A parsed request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any = None
    content_type: str = ""
    user: str = "test"
    fault: Fault | None = None


@dataclass
class Reply:
    """A response; ``body`` is JSON, or bytes of ``content_type``."""

    status: int
    body: Any
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Stream:
    """A watch to be served."""

    kind: Kind
    namespace: str | None
    match: Callable[[Any], bool]
    version: int
    initial: bool
    timeout_s: float
    bookmarks: bool


@dataclass(frozen=True)
class Place:
    """The object that a path names."""

    kind: Kind
    namespace: str | None
    name: str | None
    sub: str | None

    @property
    def key(self) -> Key:
        return (self.namespace or "" if self.kind.namespaced else "", self.name or "")


class Routes:
    """The server's operations.

    ``denied`` contains (verb, resource) pairs to which nobody has the right.
    """

    def __init__(self, store: Store, controllers: Controllers, driver: Driver) -> None:
        self.store, self.controllers, self.driver = store, controllers, driver
        self.denied: set[tuple[str, str]] = set()
        self.jobs_quota: int | None = None
        self.version = {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}

    def answer(self, wanted: Wanted) -> Reply | Stream:
        """Raises ``Problem``."""
        if wanted.path == "/version":
            return Reply(200, self.version)
        if wanted.path == f"{_REVIEWS}/selfsubjectaccessreviews":
            return self._may(wanted)
        if wanted.path == f"{_REVIEWS}/subjectaccessreviews":
            self._allow(wanted.user, "create", Place(_REVIEW, None, None, None))
            return self._may(wanted)
        place = self._place(wanted.path)
        verb = _verb(wanted, place)
        self._allow(wanted.user, verb, place)
        if place.sub == "log":
            return self._log(wanted, place)
        if place.sub not in (None, "status"):
            raise Problem(404, "the server could not find the requested resource")
        act = getattr(self, f"_{verb}", None)
        if act is None:
            raise Problem(405, "the server does not allow this method on the requested resource")
        with self.store.changed:
            reply: Reply | Stream = act(wanted, place)
        return reply

    def _place(self, path: str) -> Place:
        found = _PATH.fullmatch(path)
        if found:
            part = found.groupdict()
            group, version = part["group"] or "", part["version"] or part["core"]
            for kind in KINDS:
                if (kind.group, kind.version, kind.plural) == (group, version, part["plural"]):
                    return Place(kind, part["namespace"], part["name"], part["sub"])
        raise Problem(404, "the server could not find the requested resource", "NotFound", {})

    def _allow(self, user: str, verb: str, place: Place) -> None:
        resource = place.kind.plural + (f"/{place.sub}" if place.sub else "")
        if not self._denied(verb, resource, place.name):
            return
        where = (
            f' in the namespace "{place.namespace}"' if place.namespace else " at the cluster scope"
        )
        why = f'User "{user}" cannot {verb} resource "{resource}" in API group "{place.kind.group}"{where}'
        raise problems.forbidden(place.kind.plural, place.kind.group, place.name or "", why)

    def _denied(self, verb: str, resource: str, name: str | None) -> bool:
        return not self.denied.isdisjoint(
            {(verb, resource), ("*", resource), (verb, f"{resource} {name}")}
        )

    def _may(self, wanted: Wanted) -> Reply:
        asked = wanted.body["spec"]["resourceAttributes"]
        resource = asked["resource"] + (
            f"/{asked['subresource']}" if asked.get("subresource") else ""
        )
        allowed = not self._denied(asked["verb"], resource, asked.get("name"))
        status = {"allowed": allowed, **({} if allowed else {"reason": "no RBAC policy matched"})}
        kind = "SelfSubjectAccessReview" if "self" in wanted.path else "SubjectAccessReview"
        of = {"kind": kind, "apiVersion": "authorization.k8s.io/v1"}
        return Reply(201, {**of, **wanted.body, "status": status})

    # --- reading ----------------------------------------------------------------------------------

    def _get(self, wanted: Wanted, place: Place) -> Reply:
        return Reply(200, self.store.get(place.kind, place.key))

    def _list(self, wanted: Wanted, place: Place) -> Reply:
        kind, query = place.kind, wanted.query
        match = _match(wanted, place)
        limit = int(query.get("limit") or 0)
        version, after = self.store.version, ("", "")
        if token := query.get("continue"):
            version, after = self._goes_on(token)
        elif isinstance(wanted.fault, Stale):
            version = max(0, version - wanted.fault.writes)
        found = self.store.at(kind, version)
        keys = [key for key in sorted(found) if key > after and match(found[key])]
        page = keys[: limit or None]
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if len(page) < len(keys):
            meta["continue"] = _token(version, page[-1])
            if not (query.get("labelSelector") or query.get("fieldSelector")):
                meta["remainingItemCount"] = len(keys) - len(page)
        items = [
            {k: v for k, v in found[key].items() if k not in ("kind", "apiVersion")} for key in page
        ]
        return Reply(
            200,
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.api_version,
                "metadata": meta,
                "items": items,
            },
        )

    def _goes_on(self, token: str) -> tuple[int, Key]:
        try:
            told = json.loads(base64.urlsafe_b64decode(token))
            version, after = int(told["v"]), (str(told["after"][0]), str(told["after"][1]))
        except (ValueError, KeyError) as error:
            raise Problem(400, f"continue key is not valid: {error}") from error
        if version < 0:
            return self.store.version, after
        if version <= self.store.compacted:
            raise Problem(410, _TOO_OLD, "Expired", metadata={"continue": _token(-1, after)})
        return version, after

    def _watch(self, wanted: Wanted, place: Place) -> Stream:
        version = wanted.query.get("resourceVersion", "")
        return Stream(
            place.kind,
            place.namespace,
            _match(wanted, place),
            int(version or 0) or self.store.version,
            initial=version in ("", "0"),
            timeout_s=float(wanted.query.get("timeoutSeconds") or 300),
            bookmarks=wanted.query.get("allowWatchBookmarks") == "true",
        )

    def _log(self, wanted: Wanted, place: Place) -> Reply:
        pod = self.store.get(PODS, place.key)
        names = [container["name"] for container in pod["spec"]["containers"]]
        name = wanted.query.get("container") or names[0]
        if name not in names:
            raise Problem(400, f"container {name} is not valid for pod {place.name}")
        if not pod["spec"].get("nodeName"):
            return Reply(200, b"", "text/plain")  # nobody to ask, and no error
        if pod["spec"]["nodeName"] in self.controllers.lost_nodes:
            raise Problem(
                500,
                "Get the log of the container: dial tcp: connect: no route to host",
                "InternalError",
            )
        told = next(
            (c for c in pod["status"].get("containerStatuses", []) if c["name"] == name), None
        )
        if told is not None and "waiting" in told["state"] and not told["lastState"]:
            why = told["state"]["waiting"]["reason"]
            doing = "is waiting to start: " + why
            raise Problem(400, f'container "{name}" in pod "{place.name}" {doing}', "BadRequest")
        return Reply(
            200, _cut(self.driver.logs.get(pod["metadata"]["uid"], []), wanted.query), "text/plain"
        )

    # --- writing ----------------------------------------------------------------------------------

    def _create(self, wanted: Wanted, place: Place) -> Reply:
        obj, kind = wanted.body, place.kind
        if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
            raise Problem(400, "the object provided is unrecognized")
        if obj.get("kind", kind.kind) != kind.kind:
            raise Problem(
                400,
                f"{obj['kind']} in version {kind.api_version!r} cannot be handled as a {kind.kind}",
            )
        name = str(obj["metadata"].get("name", ""))
        self._check(place, obj, name)
        key = (place.namespace or "", name)
        if kind is JOBS:
            self._check_job(obj, name, place.namespace or "")
        if (
            kind is JOBS
            and self.jobs_quota is not None
            and len(self.store.find(JOBS)) >= self.jobs_quota
        ):
            used = len(self.store.find(JOBS))
            why = (
                "exceeded quota: crawls, requested: count/jobs.batch=1, "
                f"used: count/jobs.batch={used}, limited: count/jobs.batch={self.jobs_quota}"
            )
            raise problems.forbidden(kind.plural, kind.group, name, why)
        # Last, because admission comes before storage.
        if any(key_of(found) == key for found in self.store.find(kind)):
            raise problems.already_exists(kind.plural, kind.group, name)
        return Reply(201, self._stored(kind, key, obj, wanted.query.get("dryRun") == "All"))

    def _stored(self, kind: Kind, key: Key, obj: Object, dry: bool) -> Object:
        # A dry run does all the same things, in a harness that is discarded.
        store = Store() if dry else self.store
        obj = {"kind": kind.kind, "apiVersion": kind.api_version, **obj}
        meta = dict(obj["metadata"])
        for name in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            meta.pop(name, None)
        if kind is JOBS:
            import uuid

            meta["uid"] = str(uuid.uuid4())
            obj = json.loads(json.dumps({**obj, "metadata": meta}))
            default_job(obj)
        else:
            obj = {**obj, "metadata": meta}
        stored = store.create(kind, key, obj)
        if dry:
            stored["metadata"].pop("resourceVersion", None)
        return stored

    def _check(self, place: Place, obj: Object, name: str) -> None:
        kind, meta = place.kind, obj["metadata"]
        if not _NAME.fullmatch(name) or len(name) > 253:
            why = f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric'
            raise problems.invalid(kind.kind, kind.group, name, "metadata.name", why)
        if not kind.namespaced:
            return
        if meta.get("namespace", place.namespace) != place.namespace:
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise Problem(400, text)
        space = self.store.get(NAMESPACES, ("", place.namespace or ""))
        if space["status"]["phase"] == "Terminating":
            text = f"namespace {place.namespace} is being terminated"
            why = f"unable to create new content in namespace {place.namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": text,
                "field": "metadata.namespace",
            }
            raise problems.forbidden(kind.plural, kind.group, name, why, [cause])

    def _check_job(self, obj: Object, name: str, namespace: str) -> None:
        pod = obj.get("spec", {}).get("template", {}).get("spec", {})
        if not pod.get("containers"):
            raise problems.invalid(
                "Job",
                "batch",
                name,
                "spec.template.spec.containers",
                "Required value",
                "FieldValueRequired",
            )
        if pod.get("restartPolicy") not in ("Never", "OnFailure"):
            why = f'Required value: valid values: "OnFailure", "Never", not {pod.get("restartPolicy")!r}'
            raise problems.invalid("Job", "batch", name, "spec.template.spec.restartPolicy", why)

    def _patch(self, wanted: Wanted, place: Place) -> Reply:
        kind = place.kind
        before = self.store.get(kind, place.key)
        after = patches.apply(wanted.content_type, before, wanted.body)
        mine, theirs = before["metadata"], after.get("metadata", {})
        if theirs.get("uid", mine["uid"]) != mine["uid"]:
            why = f'Invalid value: "{theirs["uid"]}": field is immutable'
            raise problems.invalid(kind.kind, kind.group, mine["name"], "metadata.uid", why)
        if theirs.get("resourceVersion", mine["resourceVersion"]) != mine["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise problems.conflict(kind.plural, kind.group, mine["name"], why)
        new = sorted(set(theirs.get("finalizers") or []) - set(mine.get("finalizers", [])))
        if "deletionTimestamp" in mine and new:
            told = ", ".join(f'"{name}"' for name in new)
            why = (
                "Forbidden: no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{told}}}"
            )
            raise problems.invalid(
                kind.kind,
                kind.group,
                mine["name"],
                "metadata.finalizers",
                why,
                "FieldValueForbidden",
            )
        for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"):
            if name in mine:
                theirs[name] = mine[name]
        if wanted.query.get("dryRun") == "All":
            return Reply(200, after)
        return Reply(200, self.store.replace_all(kind, place.key, after))

    def _delete(self, wanted: Wanted, place: Place) -> Reply:
        kind, options = place.kind, wanted.body or {}
        found = self.store.get(kind, place.key)
        meta = found["metadata"]
        self._precondition(kind, meta, options.get("preconditions") or {})
        policy = options.get("propagationPolicy") or wanted.query.get("propagationPolicy")
        if policy is None:
            policy = "Orphan" if kind is JOBS else "Background"
        if options.get("dryRun") == ["All"]:
            return Reply(200, found)
        if kind is PODS:
            marked = self.controllers.delete_pod(found, options.get("gracePeriodSeconds"))
            return Reply(200, marked if marked is not None else found)
        finalizer = {"Foreground": FOREGROUND, "Orphan": ORPHAN if kind is JOBS else None}.get(
            policy
        )
        if kind is NAMESPACES:
            return self._delete_namespace(found)
        marked = self.store.begin_deletion(kind, place.key, 0, finalizer)
        if marked is not None:
            return Reply(200, marked)
        details = {
            "name": meta["name"],
            "group": kind.group,
            "kind": kind.plural,
            "uid": meta["uid"],
        }
        return Reply(
            200,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            },
        )

    def _precondition(self, kind: Kind, meta: dict[str, Any], wanted: dict[str, str]) -> None:
        for field_, told in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if wanted.get(field_) not in (None, meta[field_]):
                why = (
                    f"the {told} in the precondition ({wanted[field_]}) does not match the {told} in record "
                    f"({meta[field_]}). The object might have been deleted and then recreated"
                )
                raise problems.conflict(kind.kind, kind.group, meta["name"], why, kind.plural)

    def _delete_namespace(self, space: Object) -> Reply:
        """Delete everything in it; it disappears when nothing is left, which the test decides."""
        name = space["metadata"]["name"]
        marked = self.store.update(
            NAMESPACES, ("", name), lambda found: found["status"].update(phase="Terminating")
        )
        for job in self.store.find(JOBS, lambda found: found["metadata"]["namespace"] == name):
            self.store.begin_deletion(JOBS, key_of(job), 0, None)
        for pod in self.store.find(PODS, lambda found: found["metadata"]["namespace"] == name):
            self.controllers.delete_pod(pod, 0 if finished(pod) else None)
        return Reply(200, marked)


def _verb(wanted: Wanted, place: Place) -> str:
    if wanted.method == "GET" and place.name is None:
        return "watch" if wanted.query.get("watch") in ("true", "1") else "list"
    if wanted.method == "DELETE" and place.name is None:
        return "deletecollection"
    return {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}[
        wanted.method
    ]


def _match(wanted: Wanted, place: Place) -> Callable[[Any], bool]:
    by_label = selectors.labels(wanted.query.get("labelSelector"))
    by_field = selectors.fields(wanted.query.get("fieldSelector"), place.kind.plural)
    namespace = place.namespace

    def match(found: Any) -> bool:
        inside = namespace is None or found["metadata"].get("namespace") == namespace
        return inside and by_label(found) and by_field(found)

    return match


def _token(version: int, after: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps({"v": version, "after": after}).encode()).decode()


def _cut(lines: list[tuple[datetime, bytes]], query: dict[str, str]) -> bytes:
    """Cut a log as the kubelet does: lines after a time, the last of them, and the first bytes of
    those.
    """
    if since := query.get("sinceTime"):
        from_ = datetime.fromisoformat(since.replace("Z", "+00:00"))
        lines = [line for line in lines if line[0] >= from_]
    if (tail := query.get("tailLines")) is not None:
        lines = lines[-int(tail) :] if int(tail) else []
    stamped = query.get("timestamps") == "true"
    text = b"".join(
        (
            at.isoformat(timespec="microseconds").replace("+00:00", "000Z ").encode()
            if stamped
            else b""
        )
        + line
        for at, line in lines
    )
    return text[: int(query["limitBytes"])] if "limitBytes" in query else text

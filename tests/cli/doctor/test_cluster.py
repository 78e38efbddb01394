"""The doctor on a Kubernetes cluster names each problem with its fix, and changes nothing."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from crawler_lifecycle.cli.doctor.checks import cluster, component
from crawler_lifecycle.cli.doctor.report import Context, Line
from crawler_lifecycle.cli.doctor.sources import Sources
from crawler_lifecycle.cli.doctor.verb import _checks, _here
from crawler_lifecycle.clusters.kubernetes import kind as kube
from crawler_lifecycle.clusters.kubernetes import rbac
from crawler_lifecycle.redaction import Redactor
from crawler_lifecycle.settings import Settings
from tests.support.kube_api import Answer, FakeApiServer, Garbage, Silence
from tests.support.kube_api.store import NAMESPACES


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """A cluster on which everything is as ``deploy/`` creates it."""
    monkeypatch.chdir(tmp_path)
    kube._api.cache_clear()
    with FakeApiServer(tmp_path) as server:
        yield server
    kube._api.cache_clear()


def look(api: FakeApiServer, **settings: Any) -> list[Line]:
    """Return what the doctor finds."""
    given = {"kind": "kubernetes", "kubeconfig": api.kubeconfig(), "read_timeout_s": 1.0} | settings
    known = Settings.model_validate({"cluster": given})
    lines = cluster.check_cluster(Context(known, Sources({}), Redactor(set())))
    assert not [r for r in api.requests if r.method not in ("GET", "POST")], (
        "who looks changes nothing"
    )
    assert all(one.fix for one in lines if one.level != "ok")
    return [replace(one, text=one.text.replace(api.url, "https://cluster.test")) for one in lines]


def of(lines: list[Line], check: str) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in lines if one.check == check]


def test_a_cluster_on_which_everything_is_right(
    api: FakeApiServer, snapshot: SnapshotAssertion
) -> None:
    lines = look(api)
    assert [one.level for one in lines] == ["ok"] * len(lines)
    assert [(one.check, one.text) for one in lines if one.check != "clock"] == snapshot
    assert [one.check for one in lines].count("clock") == 1


def look_for(api: FakeApiServer, services: str) -> list[Line]:
    """Return what the doctor finds about the rights of the accounts in that namespace."""
    known = Settings.model_validate(
        {"cluster": {"kind": "kubernetes", "kubeconfig": api.kubeconfig(), "read_timeout_s": 1.0}}
    )
    lines = cluster.check_cluster(Context(known, Sources({}), Redactor(set()), services=services))
    return [one for one in lines if one.check == "rights"]


def test_the_rights_of_each_account_are_asked_for(api: FakeApiServer) -> None:
    assert [one.text for one in look_for(api, "fleet-a")] == [
        "every service account of fleet-a has its permissions in crawls"
    ]
    asked = [r.body["spec"] for r in api.requests if r.path.endswith("/subjectaccessreviews")]
    assert {one["user"] for one in asked} == {
        f"system:serviceaccount:fleet-a:{name}" for name in rbac.COMPONENTS
    }
    groups = ["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:fleet-a"]
    assert all(one["groups"] == groups for one in asked)
    api.deny("delete", "pods")
    api.deny("list", "events")
    lines = look_for(api, "fleet-a")
    assert [one.text for one in lines if one.level == "bad"] == [
        f"system:serviceaccount:fleet-a:{name} may not delete pods in crawls"
        for name in ("worker-control", "worker-audit")
    ]
    assert sum(one.level == "warn" for one in lines) == 4, "cluster, control, audit and observer"


def test_who_may_not_ask_for_the_rights_of_others_hears_it_and_its_own(api: FakeApiServer) -> None:
    api.deny("create", "subjectaccessreviews")
    lines = look_for(api, "fleet-a")
    assert [one.level for one in lines] == ["warn", "ok"]
    assert "can check only its own permissions" in lines[0].text


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("v1.29.9-eks-1", "bad"),
        ("v1.30.0", "ok"),
        ("v1.4.0", "bad"),
        ("v2.0", "ok"),
        ("odd", "ok"),
        ("", "ok"),
    ],
)
def test_a_cluster_that_is_too_old_is_named(api: FakeApiServer, version: str, level: str) -> None:
    api.routes.version = {"gitVersion": version}
    lines = of(look(api), "cluster")
    assert [one for one, _ in lines] == (["ok", "bad"] if level == "bad" else ["ok"])
    if level == "bad":
        assert lines[1][1].startswith(f"Kubernetes {version} is too old: ")


# --- reaching it ----------------------------------------------------------------------------------


def test_nobody_listens(api: FakeApiServer, tmp_path: Path, closed_port: Callable[[], int]) -> None:
    file = tmp_path / "gone"
    file.write_text(
        api.kubeconfig().read_text().replace(api.url, f"http://127.0.0.1:{closed_port()}")
    )
    ((level, text),) = of(look(api, kubeconfig=file), "cluster")
    assert level == "bad"
    assert "the Kubernetes API did not respond" in text


def test_no_kubeconfig(api: FakeApiServer, tmp_path: Path) -> None:
    ((level, text),) = of(look(api, kubeconfig=tmp_path / "none"), "cluster")
    assert (level, "is not a file" in text) == ("bad", True)


def test_the_cluster_does_not_know_us(api: FakeApiServer) -> None:
    api.tokens = set()
    ((level, text),) = of(look(api), "cluster")
    assert (level, "rejected our credentials" in text) == ("bad", True)


def test_a_cluster_that_falls_silent_says_so_once(api: FakeApiServer) -> None:
    api.faults.add("POST", "selfsubjectaccessreviews", Silence(60), times=None)
    lines = look(api)
    assert [one.level for one in lines if one.check == "cluster"] == ["ok", "bad"]
    assert of(lines, "namespace")[0][0] == "ok", "what was seen before is told"


class Off:
    """The API of a server whose clock is wrong."""

    def __init__(self, api: Any, skew_s: float) -> None:
        self._api, self.skew_s = api, skew_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


@pytest.mark.parametrize(("off", "level"), [(0.0, "ok"), (-3.0, "warn"), (5.0, "bad")])
def test_a_clock_that_is_off(
    api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, off: float, level: str
) -> None:
    build = kube.api_of
    monkeypatch.setattr(kube, "api_of", lambda settings: Off(build(settings), off))
    ((found, text),) = of(look(api), "clock")
    assert found == level
    assert "the Kubernetes API" in text


# --- the namespace --------------------------------------------------------------------------------


def test_no_namespace(api: FakeApiServer) -> None:
    lines = look(api, namespace="night")
    assert of(lines, "namespace") == [("bad", "the cluster has no namespace 'night'")]
    fix = str(lines[-1].fix)
    assert "apply your overlay of deploy/" in fix
    assert "Secrets and volume claims" in fix, "they are in no overlay"
    assert of(lines, "rights") == [], "nothing further can be said about it"


def test_a_namespace_on_its_way_out(api: FakeApiServer) -> None:
    api.store.update(
        NAMESPACES, ("", "crawls"), lambda found: found["status"].update(phase="Terminating")
    )
    (line,) = [one for one in look(api) if one.check == "namespace"]
    assert (line.level, "is being deleted" in line.text) == ("bad", True)
    assert "crawlctl cluster release --namespace crawls" in str(line.fix)


def test_a_namespace_that_is_not_ours_to_read(api: FakeApiServer) -> None:
    api.deny("get", "namespaces")
    assert of(look(api), "namespace")[0][0] == "warn"


# --- rights ---------------------------------------------------------------------------------------


RIGHTS = sorted({one for role in rbac.ROLES.values() for one in role})


@pytest.mark.parametrize("half", [0, 1])
def test_each_missing_right_is_named_with_the_roles_that_grant_it(
    api: FakeApiServer, half: int
) -> None:
    """Half of the rights are missing, then the other half: no existing right is named."""
    missing = sorted({(one.verb, one.resource, one.name) for one in RIGHTS})[half::2]
    for verb, resource, name in missing:
        api.deny(verb, resource, name or ("crawls" if resource == "namespaces" else None))
    found = [one for one in look(api) if one.check == "rights"]
    for right in RIGHTS:
        # And not the same right of another group.
        exactly = re.compile(rf"{re.escape(str(right))}(,|:| in )")
        lines = [one for one in found if exactly.search(one.text)]
        lacking = (right.verb, right.resource, right.name) in missing
        roles = {name for name, granted in rbac.ROLES.items() if lacking and right in granted}
        assert {
            name for name in rbac.ROLES if any(f"(Role {name}" in str(one.fix) for one in lines)
        } == roles, right
        assert {one.level for one in lines} <= (
            {"warn"} if right in rbac.DISPENSABLE else {"bad"}
        ), right


def test_a_component_asks_for_its_own_rights_only(api: FakeApiServer) -> None:
    me = b'{"kind": "SelfSubjectReview", "status": {"userInfo": {"username": "system:serviceaccount:x:gateway"}}}'
    api.faults.add("POST", "selfsubjectreviews", Garbage(me), times=None)
    api.deny("delete", "jobs")
    assert of(look(api), "rights") == [
        ("ok", "gateway has its permissions, checked as system:serviceaccount:x:gateway")
    ]
    api.deny("get", "pods/log")
    ((level, text),) = of(look(api), "rights")
    assert (level, text) == (
        "bad",
        "gateway: system:serviceaccount:x:gateway may not get pods/log in crawls",
    )


def in_the_pod_of(api: FakeApiServer, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"username": f"system:serviceaccount:crawler-lifecycle:{account}"}
    who = json.dumps({"kind": "SelfSubjectReview", "status": {"userInfo": user}})
    api.faults.add("POST", "selfsubjectreviews", Garbage(who.encode()), times=None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: f"{account}-5c689d88bb-x7kqz")


@pytest.mark.parametrize("account", list(component.USES))
def test_in_a_components_pod_what_it_cannot_reach_is_not_checked(
    api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, account: str
) -> None:
    """Otherwise the check would fail in every pod, because network policies let none of them reach
    everything.
    """
    in_the_pod_of(api, account, monkeypatch)
    known = Settings.model_validate(
        {"cluster": {"kind": "kubernetes", "kubeconfig": api.kubeconfig()}}
    )
    every = _checks(known)
    chosen, (line,) = _here(every, Context(known, Sources({}), Redactor(set())))
    assert {check.name for check in chosen} == component.OWN | component.USES[account]
    assert {check.name for check in every} > {check.name for check in chosen}
    assert (line.check, line.level) == ("component", "ok")
    assert line.text.startswith(f"this is {account}:")
    assert [one for one in look(api) if one.level == "bad"] == []


@pytest.mark.parametrize(("account", "level"), [("gateway", "ok"), ("worker-cluster", "warn")])
def test_a_namespace_is_read_by_those_whose_role_says_so(
    api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, account: str, level: str
) -> None:
    in_the_pod_of(api, account, monkeypatch)
    api.deny("get", "namespaces")
    assert [found for found, _ in of(look(api), "namespace")] == [level]


def test_anywhere_else_everything_is_checked(
    api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Settings.model_validate(
        {"cluster": {"kind": "kubernetes", "kubeconfig": api.kubeconfig(), "read_timeout_s": 1.0}}
    )
    context = Context(known, Sources({}), Redactor(set()))
    every = _checks(known)
    assert _here(every, context) == (every, ())
    in_the_pod_of(api, "somebody-else", monkeypatch)
    assert _here(every, context) == (every, ())
    assert _here(every, Context(None, Sources({}), Redactor(set()))) == (every, ())
    assert api.requests == [], "nobody is asked who we are"


@pytest.mark.parametrize("account", rbac.RIGHTLESS)
def test_a_pod_without_a_token_asks_the_cluster_nothing(
    api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, account: str
) -> None:
    in_the_pod_of(api, account, monkeypatch)
    text = f"{account} does not use the cluster's API, and has no token for it"
    assert of(look(api, kubeconfig=None), "cluster") == [("ok", text)]
    assert api.requests == []


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("worker-export-5c689d88bb-x7kqz", "worker-export"),
        ("night-gateway-5c689d88bb-x7kqz", "gateway"),
        ("gateways-machine", None),
        ("gateway", None),
    ],
)
def test_a_component_is_known_by_the_name_of_its_pod(
    monkeypatch: pytest.MonkeyPatch, host: str, found: str | None
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert component.component() == found
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert component.component() is None


def test_an_old_cluster_keeps_our_name_to_itself(api: FakeApiServer) -> None:
    api.faults.add("POST", "selfsubjectreviews", Answer(404), times=None)
    assert of(look(api), "rights") == [
        ("ok", "every component has its permissions, checked as an unknown account")
    ]

"""Which roles need the cluster: only those get a client for it, and a token in ``deploy/``."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from crawler_lifecycle.clusters.kubernetes import kind, rbac
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.files.sources import BundleFiles, NoFiles, VolumeFiles
from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.compose import ASKING, ROLES, Parts, activities_of, build_parts
from crawler_lifecycle.ports.protocols import WorkflowDirectory
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.settings import Settings
from tests.support.kube_api import FakeApiServer
from tests.support.run_refs import run_ref

DIRECTORY = cast(WorkflowDirectory, object())
DEPLOYED = TaskRef(70, 0, 1, "uid")


def asked_of_the_cluster(role: str) -> set[str]:
    """Return the calls to ``self.cluster`` by the activities of a role, including the methods that
    they call.
    """
    found: set[str] = set()
    for method in activities_of(role, Parts(Mock(), *[None] * 7, Mock())):  # type: ignore[arg-type]
        owner, seen, left = type(method.__self__), set[str](), [method.__name__]  # type: ignore[attr-defined]
        while left:
            name = left.pop()
            if name in seen or not callable(getattr(owner, name, None)):
                continue
            seen.add(name)
            tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(owner, name))))
            whole = False
            for node in ast.walk(tree):
                if not isinstance(node, ast.Attribute):
                    continue
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    left.append(node.attr)
                    whole = whole or node.attr == "cluster"
                if ast.unparse(node.value) == "self.cluster":
                    found.add(node.attr)
            handed_on = [
                n
                for n in ast.walk(tree)
                if isinstance(n, ast.Call) and "self.cluster" in map(ast.unparse, n.args)
            ]
            found |= {"everything"} if handed_on else set()
            assert not whole or found, (
                f"{owner.__name__}.{name} does something with the cluster that is not seen here"
            )
    return found


def test_the_roles_that_ask_are_known() -> None:
    asked = {role: asked_of_the_cluster(role) for role in ROLES}
    assert {role for role, what in asked.items() if what} == ASKING
    assert {f"worker-{role}" for role in set(ROLES) - ASKING} == set(rbac.RIGHTLESS)
    assert {f"worker-{role}" for role in ASKING} <= set(rbac.COMPONENTS)


def settings(tmp_path: Path, **cluster: Any) -> Settings:
    known = {
        "cluster": {"kind": "kubernetes", **cluster},
        "database": {"url": f"sqlite:///{tmp_path}/l.db"},
    }
    return Settings.model_validate(known)


@pytest.mark.parametrize("role", sorted(set(ROLES) - ASKING))
def test_the_others_need_no_way_to_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """Their pods have neither a token nor a kubeconfig, and a client could not be made."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(kind, "api_of", lambda settings: pytest.fail("a client was made"))
    parts = build_parts(settings(tmp_path), DIRECTORY, role)
    assert [source.missing is not None for source in parts.files.files(run_ref(7), [DEPLOYED])] == [
        True
    ]
    with pytest.raises(RuntimeError, match=f"role '{role}' have no client of the cluster"):
        parts.cluster.poll(run_ref(7), [])


def test_they_find_the_files_where_the_settings_say(tmp_path: Path) -> None:
    def kind(**given: Any) -> type:
        return type(build_parts(settings(tmp_path, **given), DIRECTORY, "export").files)

    assert kind() is NoFiles
    assert kind(volume_claim="files", volume_path=tmp_path) is VolumeFiles
    assert kind(files_url="s3://bucket/tasks") is BundleFiles


def test_those_that_ask_get_a_client(tmp_path: Path) -> None:
    with FakeApiServer(tmp_path) as server:
        given = settings(tmp_path, kubeconfig=server.kubeconfig())
        try:
            for role in ASKING:
                assert isinstance(build_parts(given, DIRECTORY, role).cluster, KubernetesCluster)
        finally:
            kind.api_of(given.cluster).close()
            kind._api.cache_clear()


def test_the_roles_are_the_same_on_a_local_cluster(tmp_path: Path) -> None:
    local = settings(tmp_path, kind="local", state_dir=tmp_path)
    parts = {role: build_parts(local, DIRECTORY, role) for role in ROLES}
    assert {role for role, its in parts.items() if isinstance(its.cluster, LocalCluster)} == ASKING
    assert {type(its.files) for its in parts.values()} == {LocalFiles}

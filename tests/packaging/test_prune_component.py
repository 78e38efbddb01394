"""``deploy/components/prune``: what it starts exists, may do nothing else, and has the same
restrictions as all our pods.
"""

from __future__ import annotations

import functools

import pytest
import yaml

from crawler_lifecycle.cli import main
from crawler_lifecycle.cli.admin import db_prune
from crawler_lifecycle.cli.admin.db_prune import DEFAULT_AGE
from crawler_lifecycle.clusters.kubernetes import rbac
from crawler_lifecycle.settings import variables
from tests.support.manifests import DEPLOY, Document, documents, pod_of, resources

FOLDER = DEPLOY / "components/prune"
ACCOUNT, JOB = resources(FOLDER)
POD = (pod_of(JOB) or {})["spec"]
(CONTAINER,) = POD["containers"]


def test_it_asks_the_cluster_nothing() -> None:
    assert ACCOUNT["kind"] == "ServiceAccount"
    assert (ACCOUNT["automountServiceAccountToken"], POD["automountServiceAccountToken"]) == (
        False,
        False,
    )
    assert POD["serviceAccountName"] == ACCOUNT["metadata"]["name"]
    assert ACCOUNT["metadata"]["name"] not in {*rbac.COMPONENTS, *rbac.RIGHTLESS}, "it has no role"


def test_its_user_is_that_of_our_other_processes() -> None:
    base = list(resources(DEPLOY / "base"))
    users = {
        (pod_of(one) or {})["spec"]["securityContext"]["runAsUser"]
        for one in base
        if one["kind"] == "Deployment"
    }
    assert {POD["securityContext"]["runAsUser"]} == users
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert CONTAINER["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"emptyDir"} == {kind for volume in POD["volumes"] for kind in volume if kind != "name"}


def test_it_is_given_the_settings_and_the_database_and_nothing_else() -> None:
    assert CONTAINER["envFrom"] == [{"configMapRef": {"name": "crawler-lifecycle"}}]
    (database,) = CONTAINER["env"]
    assert database["name"] == "LIFECYCLE_DATABASE__URL"
    assert database["name"] in variables()
    others = [
        one
        for workload in resources(DEPLOY / "base")
        if workload["kind"] == "Deployment"
        for one in (pod_of(workload) or {})["spec"]["containers"][0].get("env", [])
    ]
    assert database in others, "the same key of the same Secret as of the services"


def test_what_it_calls_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, object]] = []
    monkeypatch.setattr(
        db_prune, "prune", functools.wraps(db_prune.prune)(lambda **given: called.append(given))
    )
    assert main.run(CONTAINER["args"]) == 0
    assert called == [
        {
            "older_than": DEFAULT_AGE,
            "logs_older_than": "30d",
            "access_older_than": "365d",
            "yes": True,
        }
    ]


def test_it_reaches_the_database_and_nothing_else() -> None:
    """The patch adds it to the only policy that permits access to the database, in the right list."""
    (kustomization,) = documents(FOLDER / "kustomization.yaml")
    (patch,) = kustomization["patches"]
    policies = {
        one["metadata"]["name"]: one
        for one in resources(DEPLOY / "base")
        if one["kind"] == "NetworkPolicy"
    }
    assert patch["target"] == {
        "kind": "NetworkPolicy",
        "namespace": "crawler-lifecycle",
        "name": "to-database",
    }
    (operation,) = yaml.safe_load(patch["patch"])
    value: Document = policies["to-database"]["spec"]
    for step in operation["path"].split("/")[2:-1]:
        value = value[int(step)] if isinstance(value, list) else value[step]
    assert (operation["op"], operation["value"], operation["path"].rpartition("/")[2]) == (
        "add",
        "prune",
        "-",
    )
    assert (
        operation["value"]
        == JOB["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"][
            "app.kubernetes.io/component"
        ]
    )
    assert "gateway" in value, "a list of components"


def test_production_names_it_before_the_image() -> None:
    lines = (DEPLOY / "overlays/production/kustomization.yaml").read_text().splitlines()
    (place,) = [n for n, line in enumerate(lines) if line == "  - ../../components/prune"]
    assert place < lines.index("  - image")

"""Which cluster the options of a command refer to, and how the embedded stack treats it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.stack import dev, layout
from crawler_lifecycle.cli.stack.stack import Stack
from tests.cli.cli_support import Crawlctl

PORTS = {name: 10_000 + n for n, name in enumerate(layout.PORTS)}


def test_what_is_not_given_is_left_to_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFECYCLE_CLUSTER__NAMESPACE", "night")
    monkeypatch.setenv("LIFECYCLE_CLUSTER__CONTEXT", "ours")
    place = ClusterAccess(kubeconfig=Path("k"), context="other")
    assert place.environment() == {
        "LIFECYCLE_CLUSTER__KIND": "kubernetes",
        "LIFECYCLE_CLUSTER__KUBECONFIG": str(Path("k").absolute()),
        "LIFECYCLE_CLUSTER__CONTEXT": "other",
    }
    settings = place.settings()
    assert (settings.kind, settings.namespace, settings.context) == ("kubernetes", "night", "other")


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFECYCLE_CLUSTER__READ_TIMEOUT_S", "soon")
    with pytest.raises(
        CommandFailed, match="LIFECYCLE_CLUSTER__READ_TIMEOUT_S: 'soon' is not allowed"
    ) as caught:
        ClusterAccess().settings()
    assert caught.value.code is Exit.USAGE


def test_parts_of_the_stack_get_the_cluster_and_pods_no_token_for_a_gateway_they_cannot_reach(
    tmp_path: Path,
) -> None:
    place = ClusterAccess(tmp_path / "kubeconfig", None, "night", "crawl.test/demo", "10.88.0.1")
    plan = layout.Layout(tmp_path, PORTS, kubernetes=place)
    env = plan.environment(tmp_path / "crawlers.yaml")
    assert env["LIFECYCLE_CLUSTER__KIND"] == "kubernetes"
    assert env["LIFECYCLE_CLUSTER__KUBECONFIG"] == str(tmp_path / "kubeconfig")
    assert env["LIFECYCLE_CLUSTER__NAMESPACE"] == "night"
    assert env["LIFECYCLE_CLUSTER__IMAGE"] == "crawl.test/demo"
    assert "LIFECYCLE_GATEWAY__TASK_KEY" not in env
    known = plan.addresses()
    assert known["site"] == f"http://10.88.0.1:{PORTS['site']}"
    assert known["gateway"] == f"http://127.0.0.1:{PORTS['gateway']}"
    assert (known["cluster"], known["cluster_namespace"], known["image"]) == (
        "kubernetes",
        "night",
        "crawl.test/demo",
    )
    site = plan.parts(env)["site"].command
    assert site[site.index("--host") + 1] == "10.88.0.1"


def test_without_a_cluster_nothing_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFECYCLE_CLUSTER__KIND", "kubernetes")
    plan = layout.Layout(tmp_path, PORTS)
    env = plan.environment(tmp_path / "crawlers.yaml")
    assert env["LIFECYCLE_CLUSTER__KIND"] == "local"
    assert env["LIFECYCLE_GATEWAY__TASK_KEY"]
    assert plan.addresses()["cluster"] == "local"


def test_examples_in_images_are_where_their_image_has_them(tmp_path: Path) -> None:
    examples = layout.examples_dir()
    assert examples is not None
    target = tmp_path / "crawlers.yaml"
    layout.write_crawlers(
        examples / "crawlers.yaml", target, "http://10.88.0.1:8400", in_images=True
    )
    written = {crawler["name"]: crawler for crawler in yaml.safe_load(target.read_text())}
    assert written["services"]["project"] == layout.IMAGE_PROJECT
    dockerfile = (examples.parent / "images/crawler/Dockerfile").read_text()
    assert f"COPY examples/crawlers {layout.IMAGE_PROJECT}\n" in dockerfile
    assert written["services"]["args"]["site"]["default"] == "http://10.88.0.1:8400"


def test_examples_without_an_image_are_refused_before_anything_starts(tmp_path: Path) -> None:
    stack = Stack(
        layout.Layout(tmp_path / "state", PORTS, kubernetes=ClusterAccess(namespace="night"))
    )
    with pytest.raises(CommandFailed, match="the example crawlers need an image") as caught:
        stack._catalogues()
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize(
    "option", ["--kubeconfig", "--context", "--namespace", "--image", "--address"]
)
def test_options_for_pods_want_the_cluster_named(crawlctl: Crawlctl, option: str) -> None:
    done = crawlctl("dev", option, "10.0.0.1")
    assert done.code == Exit.USAGE
    assert f"{option} needs --cluster kubernetes" in done.err
    assert "add --cluster kubernetes" in done.err


def test_the_banner_names_the_cluster(tmp_path: Path) -> None:
    place = ClusterAccess(context="night", namespace="crawls", image="crawl.test/demo")
    stack = Stack(layout.Layout(tmp_path, PORTS, kubernetes=place))
    assert "cluster    kubernetes, night, namespace crawls" in dev.banner(stack, 1.0).splitlines()
    assert os.environ.get("LIFECYCLE_CLUSTER__KIND") is None

"""The ``kubernetes`` section of a catalogue entry: what it means, and its mistakes by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.compose import build_catalogue
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import (
    PodOptions,
    PodVolume,
    ReservedNames,
    Sidecar,
    Toleration,
)
from crawler_lifecycle.domain.errors import CatalogueError, InvalidRequest
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.variables import CONTRACT
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.settings import ClusterSettings, Settings, WebhookSettings

HEAD = """\
- name: shops
  image: crawl.test/shops:1
  kubernetes:
"""
WHOLE = """\
    node_selector: {pool: crawlers}
    tolerations:
      - {key: crawlers, operator: Exists, effect: NoSchedule}
      - {key: slow, value: "yes", effect: NoExecute, seconds: 60}
    priority_class: low
    pull_secrets: [mirror]
    pull_policy: Never
    queue: crawls
    volumes:
      - {name: models, mount_path: /models, claim: models, sub_path: v1, read_only: true}
      - {name: scratch, mount_path: /scratch, empty_dir: 1Gi}
    project: /srv/shops
    requests: {cpu: 250m, memory: 1Gi}
    scratch: 512Mi
    shm: 1Gi
    service_account: shops
    runtime_class: gvisor
    user: 4711
    run_as: user
    sidecars:
      - {name: proxy, image: crawl.test/proxy, command: [proxy], args: [-v], env: {A: b}, resources: {memory: 64Mi}}
    affinity: {nodeAffinity: {}}
    topology_spread: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
    extended_resources: {nvidia.com/gpu: 1}
    dns_policy: None
    dns_config: {nameservers: [192.0.2.53]}
    labels: {team: prices}
    annotations: {notes.example/owner: "Café"}
"""


def read(
    tmp_path: Path, section: str, head: str = HEAD, owned: ReservedNames | None = None
) -> CrawlerDefinition:
    file = tmp_path / "crawlers.yaml"
    file.write_text(head + section)
    [found] = load(file, owned or ReservedNames())
    return found


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE).kubernetes == PodOptions(
        node_selector={"pool": "crawlers"},
        tolerations=[
            Toleration("crawlers", "Exists", effect="NoSchedule"),
            Toleration("slow", "Equal", "yes", "NoExecute", 60),
        ],
        priority_class="low",
        pull_secrets=["mirror"],
        pull_policy="Never",
        queue="crawls",
        volumes=[
            PodVolume("models", "/models", claim="models", sub_path="v1", read_only=True),
            PodVolume("scratch", "/scratch", empty_dir="1Gi"),
        ],
        project="/srv/shops",
        requests=Resources("250m", "1Gi"),
        scratch="512Mi",
        shm="1Gi",
        service_account="shops",
        runtime_class="gvisor",
        user=4711,
        sidecars=[
            Sidecar(
                "proxy", "crawl.test/proxy", ["proxy"], ["-v"], {"A": "b"}, Resources(memory="64Mi")
            )
        ],
        affinity={"nodeAffinity": {}},
        topology_spread=[
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        extended_resources={"nvidia.com/gpu": 1},
        dns_policy="None",
        dns_config={"nameservers": ["192.0.2.53"]},
        labels={"team": "prices"},
        annotations={"notes.example/owner": "Café"},
    )


def test_nothing_needs_to_be_said(tmp_path: Path) -> None:
    assert (
        read(tmp_path, "", "- {name: shops, image: crawl.test/shops}\n").kubernetes == PodOptions()
    )


@pytest.mark.parametrize(
    ("section", "folder"),
    [("", "crawlers"), ("  kubernetes: {project: /app}\n", "/app"), ("", "/srv/crawlers")],
)
def test_the_folder_in_the_image_is_as_it_is_written(
    tmp_path: Path, section: str, folder: str
) -> None:
    written = "crawlers" if section else folder
    found = read(
        tmp_path, section, f"- name: shops\n  image: crawl.test/shops\n  project: {written}\n"
    )
    assert found.kubernetes.project == folder
    assert found.project == str(tmp_path / written)


@pytest.mark.parametrize(
    ("section", "line", "text"),
    [
        ("    nodes: {}", 4, "kubernetes.nodes: unknown key; known: node_selector, tolerations"),
        ("    runner: maybe", 4, "kubernetes.runner: 'maybe' is not allowed"),
        ("    user: 0", 4, "kubernetes.user: 0 is not allowed; 0 is root; give a user id from 1"),
        ('    user: "1000"', 4, "kubernetes.user: '1000' is not allowed"),
        (
            "    queue: Crawls",
            4,
            "kubernetes.queue: 'Crawls' is not a valid name of a Kubernetes object",
        ),
        (f"    queue: {'q' * 64}", 4, "is too long for a label"),
        (
            "    pull_secrets:\n      - mirror\n      - My Secret",
            4,
            "kubernetes.pull_secrets: 'My Secret' is not a valid name",
        ),
        (
            "    pull_policy: Sometimes",
            4,
            "kubernetes.pull_policy: 'Sometimes' is not allowed; give one of Always",
        ),
        (
            "    shm: lots",
            4,
            "kubernetes.shm: 'lots' is not allowed; give a quantity such as 512Mi",
        ),
        (
            "    shm: 2Gi\n  resources: {memory: 1Gi}",
            4,
            "kubernetes.shm: '2Gi' is above resources.memory ('1Gi')",
        ),
        (
            "    {shm: 2Gi, requests: {memory: 1Gi}}",
            4,
            "kubernetes.shm: '2Gi' is above resources.memory ('1Gi')",
        ),
        (
            "    service_account: My Account",
            4,
            "kubernetes.service_account: 'My Account' is not a valid name",
        ),
        (
            "    runtime_class: gVisor",
            4,
            "kubernetes.runtime_class: 'gVisor' is not a valid name of a Kubernetes object",
        ),
        (
            "    run_as: root",
            4,
            "kubernetes.run_as: 'root' is not allowed; give one of user, namespace",
        ),
        (
            "    {run_as: namespace, user: 7}",
            4,
            "kubernetes.user: 7 has no effect with 'run_as: namespace'",
        ),
        (
            "    affinity: {nodes: {}}",
            4,
            "kubernetes.affinity: 'nodes' is not allowed; give one of nodeAffinity",
        ),
        (
            f"    affinity: {{nodeAffinity: {{a: {'x' * 16384}}}}}",
            4,
            "bytes are too many; give at most 16384",
        ),
        ("    affinity: []", 4, "kubernetes.affinity: [] is not allowed"),
        (
            "    topology_spread: [{maxSkew: 1}, {skew: 1}]",
            4,
            "kubernetes.topology_spread[1]: 'skew' is not allowed",
        ),
        (
            "    dns_policy: Cluster",
            4,
            "kubernetes.dns_policy: 'Cluster' is not allowed; give one of ClusterFirst",
        ),
        (
            "    dns_config: {servers: []}",
            4,
            "dns_config: 'servers' is not allowed; give one of nameservers",
        ),
        (
            "    extended_resources: {gpu: 1}",
            4,
            "extended_resources: 'gpu' is not an extended resource; give DOMAIN/NAME",
        ),
        (
            "    extended_resources: {a.kubernetes.io/b: 1}",
            4,
            "'a.kubernetes.io/b' is not an extended resource",
        ),
        (
            "    extended_resources: {requests.a.b/c: 1}",
            4,
            "'requests.a.b/c' is not an extended resource",
        ),
        (
            "    extended_resources: {a.b/c: 0}",
            4,
            "extended_resources: 0 is not allowed for a.b/c; give a whole",
        ),
        (
            "    extended_resources: {a.b/c: 0.5}",
            4,
            "kubernetes.extended_resources.a.b/c: 0.5 is not allowed",
        ),
        (
            "    sidecars: [{name: crawler, image: a}]",
            4,
            "kubernetes.sidecars[0].name: 'crawler' is not allowed",
        ),
        ("    sidecars: [{name: a}]", 4, "kubernetes.sidecars[0].image: missing; add it"),
        (
            "    sidecars: [{name: a, image: a, ports: []}]",
            4,
            "ports: unknown key; known: name, image, command",
        ),
        (
            "    sidecars: [{name: a, image: a}, {name: a, image: b}]",
            4,
            "kubernetes.sidecars: the name 'a' appears",
        ),
        (
            "    sidecars: [{name: a, image: a, env: {1A: b}}]",
            4,
            "sidecars[0].env: '1A' is not a valid name of a variable",
        ),
        (
            '    sidecars: [{name: a, image: a, args: ["\\0"]}]',
            4,
            "sidecars[0].args: '\\x00' contains a NUL",
        ),
        (
            "    sidecars: [{name: a, image: a, resources: {cpu: x}}]",
            4,
            "sidecars[0].resources.cpu: 'x' is not",
        ),
        (
            "    scratch: lots",
            4,
            "kubernetes.scratch: 'lots' is not allowed; give a quantity such as 512Mi",
        ),
        (
            "    scratch: -1",
            4,
            "kubernetes.scratch: '-1' is not allowed; give a quantity such as 512Mi or 2Gi",
        ),
        ("    requests:\n      cpu: lots", 5, "kubernetes.requests.cpu: 'lots' is not allowed"),
        (
            "    requests: {disk: 1Gi}",
            4,
            "kubernetes.requests.disk: unknown key; known: cpu, memory",
        ),
        (
            "    node_selector: {pool: yes}",
            4,
            'kubernetes.node_selector.pool: yes is not a string; put it in quotes: "yes"',
        ),
        (
            "    node_selector:\n      pool: a/b",
            4,
            "kubernetes.node_selector: 'pool' has 'a/b', which is not a valid value",
        ),
        (
            "    labels: {crawler-lifecycle/run: '7'}",
            4,
            "kubernetes.labels: 'crawler-lifecycle/run' is reserved",
        ),
        ("    labels: {job-name: x}", 4, "kubernetes.labels: 'job-name' is reserved"),
        ("    labels: {'no good': x}", 4, "is not a valid name of a label"),
        (
            "    annotations: {crawler-lifecycle/spec-hash: x}",
            4,
            "'crawler-lifecycle/spec-hash' is reserved",
        ),
        (
            "    tolerations: [{operator: Exist}]",
            4,
            "kubernetes.tolerations[0].operator: 'Exist' is not allowed",
        ),
        (
            "    tolerations:\n      - {key: a}\n      - {value: b}",
            6,
            "kubernetes.tolerations[1].key: missing",
        ),
        (
            "    tolerations: [{key: a, efect: b}]",
            4,
            "efect: unknown key; known: key, operator, value, effect",
        ),
        (
            "    tolerations: [{key: a, seconds: 5}]",
            4,
            "tolerations[0].seconds: only allowed with 'effect: NoExecute'",
        ),
        (
            "    tolerations: [{key: a, operator: Exists, value: b}]",
            4,
            "kubernetes.tolerations[0].value: 'b' is not",
        ),
        (
            "    volumes: [{name: a, mount_path: /a}]",
            4,
            "volumes[0].claim: none given; a volume has exactly",
        ),
        (
            "    volumes: [{name: a, mount_path: /a, claim: a, secret: b}]",
            4,
            "claim and secret given",
        ),
        (
            "    volumes: [{name: a, mount_path: /a, host_path: /}]",
            4,
            "host_path: unknown key; known: name",
        ),
        (
            "    volumes: [{name: A, mount_path: /a, claim: a}]",
            4,
            "kubernetes.volumes[0].name: 'A' is not allowed",
        ),
        (
            "    volumes: [{name: crawl-data, mount_path: /a, claim: a}]",
            4,
            "not begin with 'crawl-'",
        ),
        (
            "    volumes: [{name: a, mount_path: a, claim: a}]",
            4,
            "volumes[0].mount_path: 'a' is not allowed",
        ),
        (
            "    volumes: [{name: a, mount_path: /a/../b, claim: a}]",
            4,
            "give an absolute path without '..'",
        ),
        (
            "    volumes: [{name: a, mount_path: /crawl/files, claim: a}]",
            4,
            "is in /crawl, where volumes are not allowed",
        ),
        ("    volumes: [{name: a, mount_path: /dev/shm, claim: a}]", 4, "is in /dev"),
        ("    volumes: [{name: a, mount_path: /, claim: a}]", 4, "mount_path: '/' is not allowed"),
        (
            "    volumes: [{name: a, mount_path: /a, claim: a, sub_path: ../b}]",
            4,
            "sub_path: '../b' is not allowed",
        ),
        (
            "    volumes: [{name: a, mount_path: /a, empty_dir: big}]",
            4,
            "kubernetes.volumes[0].empty_dir: 'big'",
        ),
        (
            "    volumes:\n      - {name: a, mount_path: /a, claim: a}\n      - {name: a, mount_path: /b, claim: a}",
            4,
            "kubernetes.volumes: the name 'a' appears twice",
        ),
        ('    project: "a\\0b"', 4, "kubernetes.project: contains a NUL character"),
        ("    runner: false", 4, "kubernetes.runner: a crawler of kind 'scrapy' needs our runner"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, section: str, line: int, text: str
) -> None:
    with pytest.raises(CatalogueError) as raised:
        read(tmp_path, section + "\n")
    told = str(raised.value)
    assert text in told
    assert f"crawlers.yaml:{line}: " in told


def test_without_a_runner_nobody_sends_another_signal(tmp_path: Path) -> None:
    head = "- name: tool\n  kind: command\n  command: [tool]\n  stop_signal: SIGINT\n  kubernetes: {runner: false}\n"
    with pytest.raises(
        CatalogueError, match=r"yaml:4: stop_signal: 'SIGINT' cannot be sent .*STOPSIGNAL"
    ):
        read(tmp_path, "", head)
    assert not read(tmp_path, "", head.replace("  stop_signal: SIGINT\n", "")).kubernetes.runner


OWNED = ReservedNames("crawl-files", frozenset({"registry"}))
A = "{name: a, mount_path: /a, "


@pytest.mark.parametrize(
    ("section", "line", "text"),
    [
        (f"    volumes: [{A} claim: crawl-files}}]", 4, "volumes[0].claim: 'crawl-files' is the volume that all"),
        (
            f"    volumes:\n      - {A} claim: mine}}\n      - {{name: b, mount_path: /b, claim: crawl-files}}",
            6,
            "kubernetes.volumes[1].claim: 'crawl-files' is the volume that all crawls share",
        ),
        (f"    volumes: [{A} secret: crawl-7-0-1}}]", 4, "kubernetes.volumes[0].secret: 'crawl-7-0-1' belongs to"),
        (f"    volumes: [{A} secret: crawler-lifecycle-database}}]", 4, "'crawler-lifecycle-database' belongs to"),
        (f"    volumes: [{A} secret: worker-control-token-x7k2p}}]", 4, "'worker-control-token-x7k2p' belongs to"),
        (f"    volumes: [{A} secret: registry}}]", 4, "kubernetes.volumes[0].secret: 'registry' is a login"),
        (f"    volumes: [{A} config_map: crawler-lifecycle-5t2bk}}]", 4, "volumes[0].config_map: 'crawler-life"),
        (f"    volumes: [{A} claim: crawler-lifecycle-data}}]", 4, "volumes[0].claim: 'crawler-lifecycle-data'"),
        ("    volumes: [{name: a, mount_path: /opt, claim: a}]", 4, "mount_path: '/opt' would hide /opt/crawl-runner"),
        (f"    volumes: [{A} projected: {{}}}}]", 4, "projected: unknown key"),
        ("    pull_secrets: [crawler-lifecycle-cloud]", 4, "kubernetes.pull_secrets: 'crawler-lifecycle-cloud'"),
        ("    service_account: crawler-lifecycle", 4, "kubernetes.service_account: 'crawler-lifecycle' belongs to"),
        ("    priority_class: crawler-lifecycle", 4, "kubernetes.priority_class: 'crawler-lifecycle' is reserved"),
        ("    priority_class: system-node-critical", 4, "'system-node-critical' is reserved, because crawls must not"),
        ("    labels: {app.kubernetes.io/name: crawler-lifecycle}", 4, "'app.kubernetes.io/name' has 'crawler"),
        ("    finalizers: [a]", 4, "kubernetes.finalizers: unknown key"),
        ("    {}\n  secrets:\n    KEY: secret:crawl-7-0-1/CRAWL_TOKEN", 6, "secrets.KEY: 'crawl-7-0-1' belongs to"),
        ("    {}\n  secrets:\n    KEY: secret:registry/.dockerconfigjson", 6, "secrets.KEY: 'registry' is a login"),
        ("    {}\n  secrets:\n    KEY: env:LIFECYCLE_DATABASE__URL", 6, "secrets.KEY: 'env:LIFECYCLE_DATABASE__URL'"),
        ("    {}\n  secrets:\n    KEY: env:AWS_SECRET_ACCESS_KEY", 6, "LIFECYCLE_CLUSTER__ENV_PREFIX"),
        ("    {}\n  secrets:\n    KEY: env:PGPASSWORD", 6, "secrets.KEY: 'env:PGPASSWORD' does not begin with CRAWL_"),
        ("    {}\n  secrets:\n    KEY: env:crawl_key", 6, "secrets.KEY: 'env:crawl_key' does not begin with CRAWL_"),
        ("    {}\n  secrets:\n    KEY: 'env:'", 6, "secrets.KEY: 'env:' does not begin with CRAWL_"),
        ("    {}\n  secrets:\n    KEY: env:CRAWL_HOOK_NEXT", 6, "begins with CRAWL_HOOK, the prefix of webhook"),
        ("    {}\n  secrets:\n    KEY: env:CRAWL_TOKEN", 6, "'env:CRAWL_TOKEN' is a variable of this service or of"),
        ("    {}\n  secrets:\n    CRAWL_TOKEN: secret:mine/key", 6, "secrets.CRAWL_TOKEN: names that begin with"),
        ("    {}\n  secrets:\n    LD_PRELOAD: secret:mine/key", 6, "secrets.LD_PRELOAD: names that begin with"),
    ],
)  # fmt: skip
def test_what_is_ours_is_named_with_its_line(
    tmp_path: Path, section: str, line: int, text: str
) -> None:
    """The shared volume, Secrets of tasks, services and accounts, and priority settings belong to
    the installation.
    """
    with pytest.raises(CatalogueError) as raised:
        read(tmp_path, section + "\n", owned=OWNED)
    assert text in str(raised.value)
    assert f"crawlers.yaml:{line}: " in str(raised.value)


@pytest.mark.parametrize(
    "name", ["crawler-catalogue", "crawler-lifecycle.metrics", "crawler-lifecycle"]
)
def test_every_name_of_an_installation_is_ours(tmp_path: Path, name: str) -> None:
    with pytest.raises(CatalogueError, match="belongs to this service"):
        read(tmp_path, f"    volumes: [{A} config_map: {name}}}]\n")


@pytest.mark.parametrize(
    "of", [f"{A} claim: crawl-files}}", f"{A} secret: registry}}"], ids=["claim", "login"]
)
def test_what_the_settings_name_is_refused_in_every_file_and_at_every_reading(
    tmp_path: Path, of: str
) -> None:
    own, more, good = (
        tmp_path / "own.yaml",
        tmp_path / "more.yaml",
        HEAD + "    priority_class: low\n",
    )
    bad = HEAD + f"    volumes: [{of}]\n"
    cluster = ClusterSettings(
        kind="kubernetes", volume_claim="crawl-files", pull_secrets=["registry"]
    )
    settings = Settings(catalogue=own, extra_catalogue=more, cluster=cluster)
    for first, second in ((bad, good), (good, bad)):
        own.write_text(first)
        more.write_text(second)
        with pytest.raises(CatalogueError):
            build_catalogue(settings)
    more.write_text(good)
    catalogue = build_catalogue(settings)
    own.write_text(bad)
    [found] = catalogue.all()
    assert found.kubernetes.volumes == [], "the last valid content stays"


def test_the_installation_says_which_variables_are_given_out(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(HEAD + "    {}\n  secrets: {KEY: env:SHOP_KEY}\n")
    with pytest.raises(CatalogueError, match="SHOP_KEY"):
        build_catalogue(Settings(catalogue=own))
    settings = Settings(catalogue=own, cluster=ClusterSettings(env_prefix="SHOP_"))
    assert build_catalogue(settings).get("shops") is not None
    with pytest.raises(CatalogueError, match="the prefix of webhook secrets"):
        build_catalogue(
            settings.model_copy(update={"webhooks": WebhookSettings(env_prefix="SHOP_K")})
        )


@pytest.mark.parametrize("prefix", ["", "A", "C-D", "CRAWL_*", "9C_", "CRAWL_ "])
def test_what_would_give_out_everything_is_no_prefix(prefix: str) -> None:
    for section in (ClusterSettings, WebhookSettings):
        with pytest.raises(ValueError, match="env_prefix"):
            section(env_prefix=prefix)


@pytest.mark.parametrize(
    "name", ["LIFECYCLE_DATABASE__URL", "lifecycle_database__url", "TEMPORAL_API_KEY"]
)
def test_our_own_settings_are_given_to_nobody_whatever_the_prefix_is(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is a variable of this service"):
        ReservedNames(env_prefix=name[:3]).check(PodOptions(), {"KEY": f"env:{name}"})
    with pytest.raises(InvalidRequest, match="is a variable of this service"):
        WebhookRules(env_prefix=name[:3]).check(
            WebhookSpec("https://hooks.example.com/", [f"env:{name}"])
        )


def test_what_every_process_is_told_about_itself_is_no_secret_of_a_crawler() -> None:
    """Each of these names in our code belongs to the contract, or may hold a secret."""
    code = "\n".join(file.read_text() for file in Path("crawler_lifecycle").rglob("*.py"))
    named = set(re.findall(r"\bCRAWL_[A-Z][A-Z_]*[A-Z]\b", code))
    assert (
        named - CONTRACT
        == {"CRAWL_HOOK", "CRAWL_HOOK_NEXT", "CRAWL_SHOP", "CRAWL_START_AGAIN"} & named
    )
    page = Path("docs/crawlers.md").read_text()
    assert set(re.findall(r"`(CRAWL_[A-Z_]+[A-Z])`", page)) - CONTRACT == {
        "CRAWL_HOOK",
        "CRAWL_SHOP_KEY",
    }
    page = Path("docs/contract.md").read_text()
    assert CONTRACT ^ set(re.findall(r"`(CRAWL_[A-Z_]+[A-Z])`", page)) == {
        "CRAWL_JOB_DIR",
        "CRAWL_PLANS_PROCESS",
    }


def test_names_that_only_resemble_ours_are_anybodys(tmp_path: Path) -> None:
    section = (
        f"    volumes: [{A} claim: crawl-files-of-mine}}, {{name: b, mount_path: /opts, secret: crawl-7-0-1-mine}}]\n"
        "    priority_class: low\n    labels: {app.kubernetes.io/name: shops}\n"
        "  secrets: {KEY: secret:shop-token-login/key, OTHER: env:CRAWL_LIFECYCLE}\n"
    )
    assert len(read(tmp_path, section, owned=OWNED).secrets) == 2

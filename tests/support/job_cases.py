"""Deployments that together use everything a Job can have, for the goldens and the real server's
dry run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from crawler_lifecycle.clusters.kubernetes.jobs.manifest import job_for
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import PodOptions, PodVolume, Sidecar, Toleration
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from tests.support.run_refs import run_ref

DIGEST = "registry.example/crawlers@sha256:" + "0123456789abcdef" * 4
FAR = datetime(2099, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Rules:
    """Settings of an installation."""

    service_account: str = "crawl"
    image: str | None = None
    pull_secrets: Sequence[str] = ()
    volume_claim: str | None = None
    files_url: str | None = None
    scheduled_priority_class: str | None = None
    onetime_priority_class: str | None = None
    priority_classes: Mapping[int, str] = field(default_factory=dict)
    queue_priority_classes: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What a Job is made from."""

    crawler: CrawlerDefinition
    deployment: Deployment
    task: QueuedTask = field(default_factory=lambda: QueuedTask(70, 0, {}))
    rules: Rules = field(default_factory=Rules)
    public: Mapping[str, str] = field(default_factory=dict)
    secret_names: Sequence[str] = ()

    def job(self) -> dict[str, Any]:
        return job_for(
            *(self.deployment.of(self.task), self.crawler, self.task, self.rules),
            public=self.public,
            secret_names=self.secret_names,
        )


def crawler(name: str = "shops", **more: Any) -> CrawlerDefinition:
    return CrawlerDefinition(name, **{"image": "crawl.test/crawler:1", **more})


def deployment(crawler: str = "shops", **more: Any) -> Deployment:
    whole = Deployment(
        run_ref(7), 1, crawler, {}, {}, [QueuedTask(70, 0, {})], Resources(), Limits(), FAR
    )
    if (run_id := more.pop("run_id", None)) is not None:
        more["run"] = run_ref(run_id)
    return replace(whole, **more)


def _choosy(options: PodOptions) -> PodOptions:
    """A crawler with its own node requirements, to which those of another try may be added."""
    near = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": near}]}
    return replace(
        options,
        affinity={**options.affinity, "nodeAffinity": wish},
        node_selector={"pool": "crawlers", "capacity": "spot"},
    )


def cases() -> dict[str, Case]:
    """By name."""
    everything = PodOptions(
        node_selector={"pool": "crawlers", "kubernetes.io/arch": "amd64"},
        tolerations=[
            Toleration("crawlers", "Exists", effect="NoSchedule"),
            Toleration("slow", "Equal", "yes", "NoExecute", 60),
        ],
        priority_class="crawl-low",
        pull_secrets=["mirror", "general"],
        pull_policy="Always",
        queue="crawls",
        volumes=[
            PodVolume("models", "/models", claim="models", sub_path="v1", read_only=True),
            PodVolume("rules", "/etc/rules", config_map="rules"),
            PodVolume("keys", "/etc/keys", secret="keys"),
            PodVolume("cache", "/var/cache/crawl", empty_dir="1Gi"),
        ],
        project="/srv/shops",
        requests=Resources("250m", "1Gi"),
        scratch="512Mi",
        shm="1Gi",
        service_account="shops",
        runtime_class="sandboxed",
        user=4711,
        labels={"team": "prices"},
        annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    )
    full = crawler(
        image=DIGEST,
        spider="shops_v2",
        args={"country": Argument("de"), "what": Argument()},
        settings={"DOWNLOAD_DELAY": "0.2"},
        env={"TERM": "dumb", "PRICE": "$(HOME) $$ ${x} 5$"},
        secrets={"API_KEY": "secret:shops/api-key"},
        resources=Resources("2", "1.5Gi"),
        resumable=True,
        kubernetes=everything,
    )
    asked = deployment(
        run_id=123_456,
        attempt=3,
        args={"what": "Bücher für 中国 🐛"},
        resources=Resources(memory="2Gi"),
        limits=Limits(run_timeout_s=7200, start_timeout_s=600, stop_grace_s=12.5),
        scheduled=True,
        due_at=datetime(2026, 11, 20, 6, 30, tzinfo=UTC),
        resume=True,
    )
    browser = PodOptions(
        shm="1Gi",
        run_as="namespace",
        sidecars=[
            Sidecar("proxy", "crawl.test/proxy:1"),
            Sidecar(
                "cache",
                DIGEST,
                ["cache"],
                ["--port", "$(PORT)"],
                {"PORT": "8"},
                Resources("1", "256Mi"),
            ),
        ],
        affinity={
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {},
                        },
                    }
                ]
            }
        },
        topology_spread=[
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
            }
        ],
        extended_resources={"nvidia.com/gpu": 1},
        dns_policy="None",
        dns_config={"nameservers": ["192.0.2.53"], "options": [{"name": "ndots", "value": "1"}]},
        volumes=[PodVolume("rules", "/etc/rules", config_map="rules")],
    )
    command = {"kind": CrawlerKind.COMMAND, "command": ["python", "fetch.py", "--all", "$(PATH)"]}
    shared = Rules(
        image="crawl.test/crawler@sha256:" + "ab" * 32,
        volume_claim="crawl-data",
        pull_secrets=["general"],
    )
    return {
        "plain": Case(crawler(), deployment()),
        "everything": Case(
            *(full, asked, QueuedTask(9_000_000_000, 99_999, {"country": "at"}, attempt=3)),
            replace(shared, onetime_priority_class="never"),
        ),
        "command_on_a_shared_volume": Case(
            crawler(
                "feeds",
                image=None,
                stop_signal="SIGINT",
                kubernetes=PodOptions(project="jobs"),
                **command,
            ),
            deployment("feeds", limits=Limits(run_timeout_s=60)),
            rules=shared,
        ),
        "uploads_with_tokens": Case(
            crawler(resources=Resources("500m", "256Mi")),
            deployment(),
            rules=Rules(files_url="s3://crawls/files"),
            public={"CRAWL_GATEWAY_URL": "http://gateway.example:8500"},
            secret_names=["CRAWL_TOKEN", "CRAWL_UPLOAD_TOKEN"],
        ),
        "browser": Case(crawler(resources=Resources("2", "2Gi"), kubernetes=browser), deployment()),
        "another_try": Case(
            crawler(resources=Resources("2", "2Gi"), resumable=True, kubernetes=_choosy(browser)),
            deployment(),
            QueuedTask(
                *(70, 0, {}),
                **{"attempt": 4, "retry": 3, "memory": "3Gi", "avoid_node": "n" * 253},
                node_selector={"capacity": "on-demand"},
            ),
        ),
        "without_runner": Case(
            crawler(
                "tool",
                image="crawl.test/tool:latest",
                kubernetes=PodOptions(runner=False),
                **command,
            ),
            deployment("tool"),
        ),
    }

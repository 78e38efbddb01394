"""All settings as one tree: entry points read it once and pass values on.

Sources, later ones win: defaults, the TOML file named by ``LIFECYCLE_CONFIG``, environment variables with the prefix
``LIFECYCLE_`` and ``__`` between levels (``LIFECYCLE_DATABASE__URL``). Temporal keeps its own (``TEMPORAL_*``).
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from crawler_lifecycle.domain.bounds import MOST
from crawler_lifecycle.domain.crawlers.pod import Owned
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.scrapy_cloud import Cloud
from crawler_lifecycle.domain.run import Resources, parse_cpu, parse_memory
from crawler_lifecycle.domain.variables import OF_CRAWLERS, OF_WEBHOOKS
from crawler_lifecycle.domain.webhooks.addresses import WebhookRules
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX

#: What the variables of all settings begin with.
PREFIX = "LIFECYCLE_"
#: Where everything of the embedded default lives, below the working directory.
STATE_DIR = Path(".crawl")
#: Temporal's worker deployment of workers that have a build id and no other name for it.
DEPLOYMENT = "crawler-lifecycle"


def _file_url(*parts: str) -> str:
    return STATE_DIR.absolute().joinpath(*parts).as_uri()


#: What names of variables begin with that are given out.
EnvPrefix = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{2,49}$")]


def _memory(least: str, most: str) -> AfterValidator:
    def check(value: str) -> str:
        if not (parse_memory(least) or 0) <= (parse_memory(value) or 0) <= (parse_memory(most) or 0):
            raise ValueError(f"{value!r:.80} is not allowed; give {least} to {most}")
        return value

    return AfterValidator(check)


#: Names of Kubernetes objects by the priority of a run.
ByPriority = dict[Annotated[int, Field(ge=1, le=5)], Annotated[str, Field(min_length=1, max_length=253)]]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DatabaseSettings(_Section):
    """The database of runs."""

    url: str = Field(default_factory=lambda: f"sqlite:///{STATE_DIR.absolute() / 'lifecycle.db'}")
    pool_size: int = Field(default=10, ge=1, le=200)
    """Connections for each group of threads."""


class ClusterSettings(_Section):
    """The cluster on which tasks execute."""

    kind: str = "local"
    namespace: str = "crawls"
    """The Kubernetes namespace that crawls are deployed to."""
    kubeconfig: Path | None = None
    """Kubeconfig of the cluster; without one KUBECONFIG, or the account of our own pod."""
    context: str | None = None
    """Context of the kubeconfig; without one the current one."""
    service_account: str = "crawl"
    """Service account of crawl pods; no token is mounted."""
    image: str | None = None
    """Image of crawlers whose catalogue entry names no image."""
    pull_secrets: list[str] = Field(default_factory=list)
    """Image pull secrets of every crawl pod."""
    scheduled_priority_class: str | None = None
    """Priority class of scheduled runs whose catalogue entry names none."""
    onetime_priority_class: str | None = None
    """The same for all other runs."""
    priority_classes: ByPriority = Field(default_factory=dict)
    """Priority classes by the priority of a run; they win over the two above."""
    queue_priority_classes: ByPriority = Field(default_factory=dict)
    """Kueue's WorkloadPriorityClasses by the priority of a run, for crawlers with a queue."""
    volume_claim: str | None = None
    """Claim of a shared volume, mounted into crawl pods by sub-path: files and saved state."""
    volume_path: Path | None = None
    """The folder where our own processes have that volume."""
    files_url: str | None = None
    """The address s3://bucket/prefix that crawl pods upload supporting files to; in place of a volume."""
    job_ttl_s: int = Field(default=86_400, ge=86_400)
    """Seconds that the cluster keeps an ended Job."""
    connect_s: float = Field(default=3.0, gt=0, le=30)
    """Seconds to connect to the Kubernetes API."""
    read_s: float = Field(default=10.0, gt=0, le=60)
    """Seconds without an answer of the Kubernetes API."""
    state_dir: Path = Field(default_factory=lambda: STATE_DIR.absolute() / "cluster")
    slots: int = Field(default=4, ge=1, le=1024)
    """Tasks that execute at once on the local cluster."""
    cgroup: str = Field(default="auto", pattern=r"^(auto|off|/.*)$")
    """Limits of local tasks by cgroups: auto, off, or the folder of the cgroup to make them in."""
    run_as: str | None = Field(default=None, min_length=1, max_length=64)
    """User (name or number) that local crawlers run as; needs a scheduler service that is root."""
    keep_days: float = Field(default=14, ge=0)
    """Days that the folders of local tasks are kept after their run's end; 0: for ever."""
    env_prefix: EnvPrefix = OF_CRAWLERS
    """The beginning of names of variables that crawlers get as secrets (env:NAME)."""


class SchedulerSettings(_Section):
    """The scheduler service: where the worker finds it, and where our reference listens."""

    url: str = "http://127.0.0.1:8600"
    host: str = "127.0.0.1"
    port: int = Field(default=8600, ge=0, le=65535)
    timeout_s: float = Field(default=20.0, gt=0)
    token: SecretStr | None = None
    """The token that the service asks for and our processes show; needed off loopback."""


class UrlSettings(_Section):
    """A place that things are sent to."""

    url: str


class GatewaySettings(_Section):
    """The HTTP API: where programs find it, where it listens, and whom it lets in."""

    url: str | None = None
    """The address for crawlctl and crawlers."""
    token: SecretStr | None = None
    """The token of crawlctl and our services."""
    host: str = "127.0.0.1"
    port: int = Field(default=8500, ge=0, le=65535)
    open: bool = False
    """Serve everybody without a token; on loopback only, as `crawlctl dev` does."""
    tokens_file: Path | None = None
    """TOML file of callers: name, role, sha256 of the token."""
    task_key: SecretStr | None = None
    """Signs a crawler's token, which adds tasks to its own run and reads its stop; also the scheduler's."""
    login_key: SecretStr | None = None
    """Signs logins to the page, the same on all gateways; without it they end with the process."""
    temporal_ui: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Our namespace in Temporal's UI, as http://127.0.0.1:8233/namespaces/default; pages link to it."""
    hosts: list[str] = Field(default_factory=list)
    """Names that it answers to where tokens are needed; empty: any."""
    reads_per_s: float = Field(default=100.0, gt=0)
    """Requests that only read, for each token."""
    writes_per_s: float = Field(default=20.0, gt=0)
    """Requests that change something, for each token."""
    requests_at_once: int = Field(default=50, ge=1)
    """Requests at once, for each token."""
    streams_at_once: int = Field(default=20, ge=1)
    """Event streams and followed logs, for each token."""
    sweep_s: float = Field(default=15.0, gt=0)
    """Seconds between searches for accepted but unstarted work."""
    scrapyd: bool = False
    """Answer clients of scrapyd as scrapyd does."""
    scrapyd_project: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """The project that these clients see."""


class PusherSettings(_Section):
    """Pushes to browsers through Pusher Channels; off until ``app_id`` is set (extra ``pusher``)."""

    app_id: str | None = None
    key: str | None = None
    secret: SecretStr | None = None
    cluster: str | None = None
    """Pusher's cluster, when no host is given."""
    host: str | None = None
    """A server that speaks Pusher's API, instead of a cluster."""
    port: int | None = Field(default=None, ge=1, le=65535)
    tls: bool = True
    channel: str = "private-crawls private-crawl-run-{run_id}"
    """The channels of every event, with spaces between; {run_id} and {crawler} are filled in."""
    timeout_s: float = Field(default=1.4, gt=0, le=1.4)
    """Seconds for one of three tries: 5 s in all."""

    def options(self) -> dict[str, Any] | None:
        """The arguments that the notifier is made with; ``None`` while it is off."""
        if self.app_id is None or self.secret is None:
            return None
        return {**self.model_dump(), "secret": self.secret.get_secret_value()}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.app_id is not None and (self.key is None or self.secret is None):
            raise ValueError("key and secret are needed as well when app_id is set")
        if self.app_id is not None and self.host is None and self.cluster is None:
            raise ValueError("cluster or host is needed as well when app_id is set")
        return self


#: What a worker needs to remember one run: 180 KiB measured (``python -m benchmarks taking-up``), and some room.
CACHED_BYTES = 200 * 1024


class WorkerSettings(_Section):
    """A worker process."""

    grace_s: float = Field(default=20.0, ge=0)
    """Seconds that running activities get after SIGTERM."""
    threads: int = Field(default=16, ge=1, le=512)
    """Activities at once for each task queue."""
    cache: Annotated[str, _memory("1Mi", "1Ti")] = "256Mi"
    """Memory for workflows that wait between two steps; what does not fit is replayed at its next one."""
    health_host: str = "127.0.0.1"
    health_port: int = Field(default=8700, ge=0, le=65535)
    """Port of health checks; 0 takes a free one."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Prometheus endpoint; none: no metrics."""
    wake_ups: bool = True
    """Let the role cluster notice changes on the cluster at once; the role observer always does."""
    deployment: str | None = Field(default=None, max_length=60, pattern=r"^[A-Za-z0-9_-]+$")
    """Name of Temporal's worker deployment that all roles belong to; none: workers are not versioned."""
    build_id: str | None = Field(default=None, max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    """The build, as Temporal's worker versioning knows it; none: TEMPORAL_WORKER_BUILD_ID, if versioned."""

    def cached(self) -> int:
        """The number of workflows that one role keeps in memory."""
        return (parse_memory(self.cache) or 0) // CACHED_BYTES

    def version(self) -> tuple[str, str] | None:
        """Deployment and build of versioned workers; ``None`` for workers that take whatever comes.

        Raises ``InvalidRequest`` when the deployment has a name and the build has none.
        """
        if self.deployment is None and self.build_id is None:
            return None
        build = self.build_id or os.environ.get("TEMPORAL_WORKER_BUILD_ID")
        if not build:
            raise InvalidRequest(
                f"LIFECYCLE_WORKER__BUILD_ID: missing for the deployment {self.deployment!r}; set it to what tells "
                "this build from all others, for example a commit, or unset LIFECYCLE_WORKER__DEPLOYMENT"
            )
        return self.deployment or DEPLOYMENT, build


class PlansSettings(_Section):
    """Users' managers: their code, and what their words from Scrapy Cloud mean here."""

    modules: list[str] = Field(default_factory=list)
    """Modules whose managers and functions plans workers execute; *: all of the folder."""
    folder: Path = Field(default_factory=Path.cwd)
    """The folder where these modules are searched first."""
    environment: list[str] = Field(default_factory=list)
    """Names of variables of the worker that users' code gets too."""
    hook_s: float = Field(default=60.0, gt=0, le=600)
    """Seconds that a hook or one cycle of a manager gets."""
    page_s: float = Field(default=300.0, gt=0, le=900)
    """Seconds that a source gets for one page of items."""
    processes: int = Field(default=100, ge=1, le=1000)
    """Processes with users' code at once in one worker."""
    memory: str = "1Gi"
    """Private memory of one such process."""
    functions: int = Field(default=4, ge=1, le=100)
    """Functions of graphs at once in one worker."""
    queue: str | None = None
    """Name of the pool whose functions it executes; none: the common one."""
    result: Annotated[str, _memory("1Ki", "1Gi")] = "64Mi"
    """Largest result of a function that is recorded."""
    buffer: int = Field(default=1000, ge=1, le=100_000)
    """Most items of a source that wait for a slot."""
    unit_cpu: str | None = None
    """Processors of one unit; none: units ask for none."""
    unit_memory: str = "1Gi"
    """Memory of one unit."""
    projects: dict[str, str] = Field(default_factory=dict)
    """Number or alias of a project -> prefix of the names of its crawlers."""

    @field_validator("modules")
    @classmethod
    def _modules(cls, value: list[str]) -> list[str]:
        for name in value:
            if (name != "*" and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII)) or len(name) > 150:
                raise ValueError(f"{name!r:.80} names no module; write it as for import, for example shop.managers")
        return list(dict.fromkeys(value))

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, value: list[str]) -> list[str]:
        for name in value:
            if name.upper().startswith((PREFIX, "TEMPORAL_")):
                raise ValueError(f"{name!r:.80} is for our own processes; users' code gets none of these")
        return value

    @field_validator("queue")
    @classmethod
    def _queue(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", value, re.ASCII):
            raise ValueError(f"{value!r:.80} names no pool; give 1 to 50 letters, digits, dots, dashes, underscores")
        return value

    @field_validator("unit_cpu", "unit_memory", "memory")
    @classmethod
    def _quantity(cls, value: str | None, info: ValidationInfo) -> str | None:
        (parse_cpu if info.field_name == "unit_cpu" else parse_memory)(value)
        return value

    @field_validator("projects")
    @classmethod
    def _prefixes(cls, value: dict[str, str]) -> dict[str, str]:
        for project, prefix in value.items():
            if not project or not re.fullmatch(r"[a-z0-9_.-]{0,62}", prefix):
                raise ValueError(f"{project!r:.80}: {prefix!r:.80} begins no crawler's name; give {{project: prefix}}")
        return value

    def cloud(self) -> Cloud:
        """The same as the rules of ``domain.scrapy_cloud`` take it."""
        return Cloud(Resources(cpu=self.unit_cpu, memory=self.unit_memory), self.projects)


class WebhookSettings(_Section):
    """The addresses that webhooks may lead to."""

    networks: list[str] = Field(default_factory=list)
    """Networks beside the public internet that they may lead to: 10.1.0.0/16."""
    loopback: bool = False
    """Allow http and this machine, as `crawlctl dev` does."""
    at_once: int = Field(default=100, ge=1, le=512)
    """Webhooks that one worker serves."""
    env_prefix: EnvPrefix = OF_WEBHOOKS
    """The beginning of names of variables that hold secrets of webhooks (env:NAME)."""

    @field_validator("networks")
    @classmethod
    def _networks(cls, value: list[str]) -> list[str]:
        for one in value:
            ipaddress.ip_network(one)
        return value

    @property
    def rules(self) -> WebhookRules:
        """The same as a webhook is judged by, when it is made and when it is told."""
        return WebhookRules([ipaddress.ip_network(one) for one in self.networks], self.loopback, self.env_prefix)


class AuditSettings(_Section):
    """Audits: database, cluster and Temporal compared, and put right where they differ. Seconds."""

    every_s: float = Field(default=900.0, ge=0)
    """Seconds between two scheduled audits; 0: none are scheduled."""
    repair: bool = True
    """Let scheduled audits repair, not only report."""
    grace_s: float = Field(default=120.0, ge=0)
    """Seconds before a run whose workflow is gone is taken over."""
    orphan_grace_s: float = Field(default=300.0, ge=0)
    """Seconds before a task that no run owns is ended."""
    start_grace_s: float = Field(default=30.0, ge=0)
    """Seconds before an accepted run that nobody took up is started."""


class LimitSettings(_Section):
    """The most that may be open at once, of each kind."""

    managers: int = Field(default=MOST["managers"], ge=1, le=100_000)
    """Managers that have not ended."""
    graphs: int = Field(default=MOST["graphs"], ge=1, le=100_000)
    """Graphs that have not ended, and drafts."""
    schedules: int = Field(default=MOST["schedules"], ge=1, le=100_000)
    """Schedules, paused ones too."""
    webhooks: int = Field(default=MOST["webhooks"], ge=1, le=WEBHOOKS_MAX)
    """Webhooks, paused ones too."""


class PayloadSettings(_Section):
    """The data that goes through Temporal; readable there until keys are set."""

    keys: SecretStr | None = None
    """NAME=KEY[,NAME=KEY], 32 bytes in base64 each; the first encrypts, all of them read."""


class LogSettings(_Section):
    """The log that our processes write to standard error."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["auto", "json", "pretty"] = "auto"
    """One JSON object a line, or for people; auto: pretty on a terminal, else JSON."""


class Settings(BaseSettings):
    """The tree. ``Settings.load()`` is what entry points call."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", env_ignore_empty=True
    )

    config: Path | None = None
    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    archive: UrlSettings = Field(default_factory=lambda: UrlSettings(url=_file_url("archive")))
    events: UrlSettings = Field(default_factory=lambda: UrlSettings(url=_file_url("events.jsonl")))
    pusher: PusherSettings = Field(default_factory=PusherSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    plans: PlansSettings = Field(default_factory=PlansSettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    payloads: PayloadSettings = Field(default_factory=PayloadSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    crawlers: Path = Path("crawlers.yaml")
    more_crawlers: Path | None = None
    """Another catalogue, for names that the first lacks."""

    @property
    def owned(self) -> Owned:
        """The names that no catalogue entry may mount or name."""
        of = self.cluster
        return Owned(of.volume_claim, frozenset(of.pull_secrets), of.env_prefix, self.webhooks.env_prefix)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources = [init_settings, env_settings]
        path = os.environ.get("LIFECYCLE_CONFIG")
        if path:
            sources.append(TomlConfigSettingsSource(settings_cls, Path(path)))
        return tuple(sources)

    @classmethod
    def load(cls) -> Settings:
        """Read all sources. Raises ``InvalidRequest`` that names each wrong setting, its value and its variable."""
        path = os.environ.get("LIFECYCLE_CONFIG")
        if path and not Path(path).is_file():
            raise InvalidRequest(f"LIFECYCLE_CONFIG: {path!r} is no file; give the path of a TOML file or unset it")
        try:
            return cls()
        except ValidationError as error:
            lines = []
            for item in error.errors():
                name = "LIFECYCLE_" + "__".join(str(part).upper() for part in item["loc"])
                if item["type"] == "extra_forbidden":
                    # A misspelt name does not tell whether its value is a secret, so no value is shown.
                    lines.append(
                        f"{name}: no setting has this name; docs/settings.md lists all, crawlctl doctor the nearest"
                    )
                    continue
                lines.append(f"{name}: {_masked(name, item.get('input'))} is not allowed; {item['msg']}")
            raise InvalidRequest("; ".join(lines)) from None
        except ValueError as error:
            raise InvalidRequest(f"{path or 'environment'}: settings cannot be read; {error}") from None


def _masked(name: str, value: object) -> str:
    if not isinstance(value, str | int | float | None):
        return "what was given together"  # a section holds the secrets of its fields
    secret = any(word in name for word in ("PASSWORD", "SECRET", "TOKEN", "KEY", "DATABASE__URL"))
    return "'…'" if secret else repr(value)[:120]


def variables(model: type[BaseModel] = Settings, prefix: str = PREFIX) -> Iterator[str]:
    """The variable of every setting, in the order of the tree."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from variables(kind, f"{prefix}{name.upper()}__")
        else:
            yield prefix + name.upper()


def unread_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables with our prefix that no setting reads, each with its cure: misspelt, or of another version.

    Below a section pydantic refuses them; at the top it cannot tell them from those of other programs.
    """
    known = list(variables())
    for name in sorted(name for name in environment if name.upper().startswith(PREFIX)):
        upper = name.upper()
        # A section can be given as one JSON object; what our tests read is no business of a service.
        if upper.startswith(f"{PREFIX}TEST_") or upper in known or any(one.startswith(f"{upper}__") for one in known):
            continue
        same = [one for one in known if one.replace("_", "") == upper.replace("_", "")]
        near = same or difflib.get_close_matches(upper, known, n=1, cutoff=0.8)
        yield name, f"did you mean {near[0]}?" if near else "unset it; docs/settings.md lists all settings"

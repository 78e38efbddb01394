"""All settings as one tree. Entry points read it once and pass the values on.

There are three sources: the defaults, the TOML file that ``LIFECYCLE_CONFIG`` names, and environment variables. Later
sources override earlier ones. Variables have the prefix ``LIFECYCLE_``, and ``__`` between levels
(``LIFECYCLE_DATABASE__URL``). Temporal has its own variables (``TEMPORAL_*``).
"""

from __future__ import annotations

import difflib
import hmac
import ipaddress
import json
import os
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

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
from crawler_lifecycle.domain.crawlers.crawler import check_retries
from crawler_lifecycle.domain.crawlers.pod import Owned
from crawler_lifecycle.domain.ends import Ends
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.domain.managers.scrapy_cloud import Cloud
from crawler_lifecycle.domain.names import CRAWLER_NAME, STACK_HEADER
from crawler_lifecycle.domain.pools import POOL_NAME, POOLS_MAX
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.domain.quotas import QUOTA_KEY, QUOTA_MAX, QUOTAS_MAX, Quotas, What, check_quota_keys
from crawler_lifecycle.domain.resources import Resources, parse_cpu, parse_memory
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.variables import OF_CRAWLERS, OF_WEBHOOKS
from crawler_lifecycle.domain.webhooks.addresses import WebhookRules
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX

#: Prefix of the variables of all settings.
PREFIX = "LIFECYCLE_"
#: Folder of all files of the embedded default, in the working directory.
STATE_DIR = Path(".crawl")
#: Name of Temporal's worker deployment for workers that have a build id but no deployment name.
DEPLOYMENT = "crawler-lifecycle"


#: Settings that decide the same thing in each process that uses the database.
ALIKE = ("pools", "quotas", "limits", "retries", "ends", "payloads.keys", "cluster.kind", "cluster.slots")


def sqlite_url(file: Path) -> str:
    """Return the database URL of a file. SQLAlchemy decodes it, so each character that means something is encoded."""
    return f"sqlite:///{quote(os.fsencode(file))}"


def _file_url(*parts: str) -> str:
    return STATE_DIR.absolute().joinpath(*parts).as_uri()


#: The prefix of the names of variables that crawlers or webhooks may use.
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

    url: str = Field(default_factory=lambda: sqlite_url(STATE_DIR.absolute() / "lifecycle.db"))
    pool_size: int = Field(default=10, ge=1, le=200)
    """Most database connections of each group of threads."""


class ClusterSettings(_Section):
    """The cluster on which tasks execute."""

    kind: str = "local"
    namespace: str = "crawls"
    """The Kubernetes namespace for the pods of crawls."""
    kubeconfig: Path | None = None
    """Path of the kubeconfig; by default KUBECONFIG, or the account of our own pod."""
    context: str | None = None
    """Context of the kubeconfig; by default its current context."""
    service_account: str = "crawl"
    """Service account of crawl pods. Its token is not mounted."""
    image: str | None = None
    """Image of crawlers whose catalogue entry names no image."""
    pull_secrets: list[str] = Field(default_factory=list)
    """Image pull secrets of every crawl pod."""
    scheduled_priority_class: str | None = None
    """Priority class of scheduled runs whose catalogue entry names no priority class."""
    onetime_priority_class: str | None = None
    """Priority class of all other runs whose catalogue entry names no priority class."""
    priority_classes: ByPriority = Field(default_factory=dict)
    """Priority classes by the priority of a run; they win over the two above."""
    queue_priority_classes: ByPriority = Field(default_factory=dict)
    """Kueue's WorkloadPriorityClasses by the priority of a run, for crawlers with a queue."""
    volume_claim: str | None = None
    """Name of the PersistentVolumeClaim for files and saved state. Crawl pods mount parts of it."""
    volume_path: Path | None = None
    """Folder of the shared volume in our own processes."""
    files_url: str | None = None
    """Address s3://bucket/prefix to which crawl pods upload supporting files, instead of a volume."""
    job_ttl_s: int = Field(default=3_600, ge=60, le=31_536_000)
    """Seconds that the cluster keeps an ended Job after its end is on record. Ended Jobs count for a quota."""
    connect_s: float = Field(default=3.0, gt=0, le=30)
    """Most seconds to connect to the Kubernetes API."""
    read_s: float = Field(default=10.0, gt=0, le=60)
    """Most seconds to wait for data from the Kubernetes API."""
    state_dir: Path = Field(default_factory=lambda: STATE_DIR.absolute() / "cluster")
    slots: int = Field(default=4, ge=1, le=1024)
    """Most tasks that execute at once on the local cluster. With pools it also counts on other clusters, if set."""
    cgroup: str = Field(default="auto", pattern=r"^(auto|off|/.*)$")
    """Cgroups that limit local tasks: auto, off, or the folder of the parent cgroup."""
    run_as: str | None = Field(default=None, min_length=1, max_length=64)
    """System user (name or number) of local crawlers. The scheduler service must then be root."""
    keep_days: float = Field(default=14, ge=0)
    """Days to keep the folders of local tasks after their run's end; 0: for ever."""
    env_prefix: EnvPrefix = OF_CRAWLERS
    """Prefix of the names of variables that crawlers may get as secrets (env:NAME)."""


class SchedulerSettings(_Section):
    """The scheduler service: its address for workers, and the host and port of our reference service."""

    url: str = "http://127.0.0.1:8600"
    host: str = "127.0.0.1"
    port: int = Field(default=8600, ge=0, le=65535)
    timeout_s: float = Field(default=20.0, gt=0)
    token: SecretStr | None = None
    """Token that the service requires and our processes send; needed unless the host is loopback."""


class UrlSettings(_Section):
    """The address of the archive or of the event sink."""

    url: str


class GatewaySettings(_Section):
    """The HTTP API: its address for programs, its host and port, and its access rules."""

    url: str | None = None
    """Address of the gateway for crawlctl and crawlers."""
    page_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$", max_length=500)
    """Address of the page for people, for links in alerts; by default url."""
    token: SecretStr | None = None
    """Token that crawlctl and our services send."""
    host: str = "127.0.0.1"
    port: int = Field(default=8500, ge=0, le=65535)
    open: bool = False
    """Serve every caller without a token, as `crawlctl dev` does; only on loopback."""
    tokens_file: Path | None = None
    """TOML file of callers: name, role, sha256 of the token."""
    task_key: SecretStr | None = None
    """Key that signs tokens of tasks. Gateway and scheduler service need the same key."""
    login_key: SecretStr | None = None
    """Key that signs logins to the page, the same on all gateways; without it logins end with the process."""
    temporal_ui: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Address of our namespace in Temporal's UI, for links: http://127.0.0.1:8233/namespaces/default."""
    hosts: list[str] = Field(default_factory=list)
    """Host names that requests may name if tokens are required; empty: any name."""
    reads_per_s: float = Field(default=100.0, gt=0)
    """Most requests in a second that only read, for each token."""
    writes_per_s: float = Field(default=20.0, gt=0)
    """Most requests in a second that change something, for each token."""
    requests_at_once: int = Field(default=50, ge=1)
    """Most requests at once, for each token."""
    streams_at_once: int = Field(default=20, ge=1)
    """Most event streams and followed logs at once, for each token."""
    sweep_s: float = Field(default=15.0, gt=0)
    """Seconds between two searches for work that was accepted but not started."""
    scrapyd: bool = False
    """Serve the API of scrapyd too."""
    scrapyd_project: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """Name of the project that clients of scrapyd see."""


class OidcGrant(_Section):
    """Role and project of the people whose claim holds one value."""

    role: Literal["read", "operate", "admin"]
    project: Annotated[str, Field(pattern=rf"^(\*|{CRAWLER_NAME.pattern})$")] = DEFAULT


class OidcSettings(_Section):
    """People who log in by an OpenID Connect provider, the issuer. Off without ``issuer``."""

    issuer: str | None = Field(default=None, pattern=r"^(https://|http://localhost:|http://127\.0\.0\.1:)[^\s?#]+$")
    """The issuer's address, exactly as its tokens have it: https, or http on this machine."""
    client_id: str | None = Field(default=None, min_length=1, max_length=500)
    """Name of this gateway at the issuer."""
    client_secret: SecretStr | None = None
    """Its secret at the issuer; none: a public client."""
    audience: str | None = Field(default=None, min_length=1, max_length=500)
    """Audience of tokens for the API; by default client_id."""
    scopes: str = Field(default="openid email profile", pattern=r"(^| )openid( |$)")
    """The scopes to ask for at a login. Without ``openid``, no issuer gives an ID token."""
    name_claim: str = "email"
    """Claim with the name of a person, who is called oidc:NAME here."""
    roles_claim: str = "groups"
    """Claim that decides role and project."""
    roles: dict[str, OidcGrant] = Field(default_factory=dict, max_length=1000)
    """Value of that claim -> role and project. If several fit a person, the highest role counts, then all projects."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.issuer is not None and not (self.client_id and self.roles):
            raise ValueError('issuer is set, so client_id and roles, such as {"GROUP": {"role": "read"}}, must be too')
        return self


class PusherSettings(_Section):
    """Pushes to browsers through Pusher Channels. Needs ``app_id`` and the extra ``pusher``."""

    app_id: str | None = None
    key: str | None = None
    secret: SecretStr | None = None
    cluster: str | None = None
    """Name of Pusher's cluster, if no host is given."""
    host: str | None = None
    """Host of a server with Pusher's API, instead of a cluster."""
    port: int | None = Field(default=None, ge=1, le=65535)
    tls: bool = True
    channel: str = "private-crawls private-crawl-run-{run_id}"
    """Channels of every event, separated by spaces; {run_id} and {crawler} are replaced."""
    timeout_s: float = Field(default=1.4, gt=0, le=1.4)
    """Most seconds for each of three tries; all tries together take at most 5 s."""

    def options(self) -> dict[str, Any] | None:
        """Return the arguments of the notifier; ``None`` if pushes are off."""
        if self.app_id is None or self.secret is None:
            return None
        return {**self.model_dump(), "secret": self.secret.get_secret_value()}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.app_id is not None and (self.key is None or self.secret is None):
            raise ValueError("app_id is set, so key and secret must be set too")
        if self.app_id is not None and self.host is None and self.cluster is None:
            raise ValueError("app_id is set, so cluster or host must be set too")
        return self


#: Bytes of memory for one cached run: 180 KiB measured (``python -m benchmarks taking-up``), rounded up.
CACHED_BYTES = 200 * 1024


class WorkerSettings(_Section):
    """A worker process."""

    grace_s: float = Field(default=20.0, ge=0)
    """Seconds that running activities get after SIGTERM."""
    threads: int = Field(default=16, ge=1, le=512)
    """Most activities at once for each task queue."""
    cache: Annotated[str, _memory("1Mi", "1Ti")] = "256Mi"
    """Memory for workflows that wait for their next step. Others are replayed at their next step."""
    health_host: str = "127.0.0.1"
    health_port: int = Field(default=8700, ge=0, le=65535)
    """Port of health checks; 0: any free port."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the Prometheus endpoint; none: no metrics."""
    wake_ups: bool = True
    """Let the role cluster notice changes on the cluster at once. The role observer always does it."""
    deployment: str | None = Field(default=None, max_length=60, pattern=r"^[A-Za-z0-9_-]+$")
    """Name of Temporal's worker deployment; by default TEMPORAL_DEPLOYMENT_NAME, which Temporal's worker controller
    sets for each role. Without it and build_id workers have no versions."""
    build_id: str | None = Field(default=None, max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    """Build id for Temporal's worker versioning; by default TEMPORAL_WORKER_BUILD_ID, if deployment is set."""

    def cached(self) -> int:
        """Return the number of workflows that one role keeps in memory."""
        return (parse_memory(self.cache) or 0) // CACHED_BYTES

    def version(self) -> tuple[str, str] | None:
        """Return deployment and build of versioned workers; ``None`` for workers without versions.

        Raises ``InvalidRequest`` if the deployment has a name but the build has none.
        """
        deployment = self.deployment or os.environ.get("TEMPORAL_DEPLOYMENT_NAME") or None
        if deployment is None and self.build_id is None:
            return None
        build = self.build_id or os.environ.get("TEMPORAL_WORKER_BUILD_ID")
        if not build:
            raise InvalidRequest(
                f"LIFECYCLE_WORKER__BUILD_ID: missing for the deployment {deployment!r}; set it to a name that no "
                "other build has, for example a commit; or unset LIFECYCLE_WORKER__DEPLOYMENT, TEMPORAL_DEPLOYMENT_NAME"
            )
        return deployment or DEPLOYMENT, build


class PoolSettings(_Section):
    """One pool of runs."""

    max: int | None = Field(default=None, ge=1, le=1_000_000)
    """Most tasks at once; none: as many as the cluster takes."""
    weight: float = Field(default=1.0, ge=0.01, le=1000)
    """Its share beside other pools that wait, in proportion to theirs."""
    reserved: int = Field(default=0, ge=0, le=1_000_000)
    """Places that other pools leave free for it."""
    queue: str | None = Field(default=None, min_length=1, max_length=253)
    """Kueue's LocalQueue for its Jobs, unless the crawler names one. Kueue then decides instead of max and reserved."""

    project: Annotated[str, Field(pattern=f"^{CRAWLER_NAME.pattern}$")] | None = None
    """The only project whose runs may be in it; none: every project's."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max is not None and self.reserved > self.max:
            raise ValueError(f"reserved: {self.reserved} is above max: {self.max}; reserve fewer, or raise max")
        if self.queue is not None and (self.max is not None or self.reserved):
            raise ValueError("queue: Kueue decides in this pool; set max and reserved as quotas of its ClusterQueue")
        return self


class PlansSettings(_Section):
    """Users' managers and functions: their modules and limits, and the meaning of units and projects."""

    modules: list[str] = Field(default_factory=list)
    """Modules with managers and functions that plans workers execute; *: all modules of the folder."""
    folder: Path = Field(default_factory=Path.cwd)
    """The first folder to search for these modules."""
    environment: list[str] = Field(default_factory=list)
    """Names of the worker's variables that users' code gets too."""
    hook_s: float = Field(default=60.0, gt=0, le=600)
    """Most seconds for each hook or other method of a manager."""
    page_s: float = Field(default=300.0, gt=0, le=900)
    """Most seconds for reading one page of items from a source."""
    processes: int = Field(default=100, ge=1, le=1000)
    """Most processes of managers at once in one worker."""
    memory: str = "1Gi"
    """Most private memory of one process with users' code."""
    functions: int = Field(default=4, ge=1, le=100)
    """Most functions of graphs at once in one worker."""
    queue: str | None = None
    """Name of the pool whose functions the worker executes; none: the common pool."""
    result: Annotated[str, _memory("1Ki", "1Gi")] = "64Mi"
    """Largest result of a function that can be recorded."""
    buffer: int = Field(default=1000, ge=1, le=100_000)
    """Most items of a source that wait for a slot."""
    unit_cpu: str | None = None
    """Processors of one unit; none: units request no processors."""
    unit_memory: str = "1Gi"
    """Memory of one unit."""
    projects: dict[str, str] = Field(default_factory=dict)
    """Number or alias of a project -> prefix of the names of its crawlers."""

    @field_validator("modules")
    @classmethod
    def _modules(cls, value: list[str]) -> list[str]:
        for name in value:
            if (name != "*" and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII)) or len(name) > 150:
                raise ValueError(f"{name!r:.80} is no module name; write it as in an import, such as shop.managers")
        return list(dict.fromkeys(value))

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, value: list[str]) -> list[str]:
        for name in value:
            if name.upper().startswith((PREFIX, "TEMPORAL_")):
                raise ValueError(f"{name!r:.80} is only for our own processes; remove it from this setting")
        return value

    @field_validator("queue")
    @classmethod
    def _queue(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", value, re.ASCII):
            raise ValueError(f"{value!r:.80} is no pool name; give 1 to 50 letters, digits, dots, dashes, underscores")
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
                raise ValueError(f"{project!r:.80}: {prefix!r:.80} can begin no crawler's name; use a-z, 0-9, _ . -")
        return value

    def cloud(self) -> Cloud:
        """Return units and projects in the form that ``domain.managers.scrapy_cloud`` needs."""
        return Cloud(Resources(cpu=self.unit_cpu, memory=self.unit_memory), self.projects)


class WebhookSettings(_Section):
    """Webhooks: the addresses that they may call, and their number at once."""

    networks: list[str] = Field(default_factory=list)
    """Networks that webhooks may call in addition to the public internet, such as 10.1.0.0/16."""
    loopback: bool = False
    """Allow http and this machine, as `crawlctl dev` does."""
    at_once: int = Field(default=100, ge=1, le=512)
    """Most webhooks that one worker serves at once."""
    env_prefix: EnvPrefix = OF_WEBHOOKS
    """Prefix of the names of variables that contain secrets of webhooks (env:NAME)."""

    @field_validator("networks")
    @classmethod
    def _networks(cls, value: list[str]) -> list[str]:
        for one in value:
            ipaddress.ip_network(one)
        return value

    @property
    def rules(self) -> WebhookRules:
        """The rules for addresses. They are checked when a webhook is made and at each delivery."""
        return WebhookRules([ipaddress.ip_network(one) for one in self.networks], self.loopback, self.env_prefix)


class SmtpSettings(_Section):
    """The mail server for alerts of the kind email."""

    host: str | None = None
    port: int = Field(default=587, ge=1, le=65535)
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """starttls: plain at first; tls: from the first byte (port 465); none: for a relay without a password."""
    user: str | None = None
    password: SecretStr | None = None
    sender: str | None = Field(default=None, pattern=r"^[^\r\n]*[^\s@]@[^\s@]+$", max_length=255)
    """Sender of the mails: crawls@example.com, or Crawls <crawls@example.com>."""

    def options(self) -> dict[str, Any]:
        """Return the arguments of the mailer."""
        return {**self.model_dump(), "password": self.password and self.password.get_secret_value()}

    @model_validator(mode="after")
    def _private(self) -> Self:
        if self.tls == "none" and self.password is not None and not is_loopback(self.host or ""):
            raise ValueError("tls: none sends the password readably; give starttls or tls, or no password")
        return self


class AuditSettings(_Section):
    """Audits: they compare database, cluster and Temporal, and repair differences."""

    every_s: float = Field(default=900.0, ge=0)
    """Seconds between two scheduled audits; 0: no scheduled audits."""
    repair: bool = True
    """Let scheduled audits repair differences; otherwise they only report them."""
    grace_s: float = Field(default=120.0, ge=0)
    """Seconds that an audit waits before it takes over a run without a workflow."""
    orphan_grace_s: float = Field(default=300.0, ge=0)
    """Seconds that an audit waits before it ends a task without a run."""
    start_grace_s: float = Field(default=30.0, ge=0)
    """Seconds that an audit waits before it starts an accepted run that was not started."""


class LimitSettings(_Section):
    """Most managers, graphs, schedules and webhooks at once."""

    managers: int = Field(default=MOST["managers"], ge=1, le=100_000)
    """Most managers that have not ended."""
    graphs: int = Field(default=MOST["graphs"], ge=1, le=100_000)
    """Most graphs that have not ended."""
    schedules: int = Field(default=MOST["schedules"], ge=1, le=100_000)
    """Most schedules, including paused ones."""
    webhooks: int = Field(default=MOST["webhooks"], ge=1, le=WEBHOOKS_MAX)
    """Most webhooks, including paused ones."""


class PayloadSettings(_Section):
    """The data that we send through Temporal. It is readable there unless keys are set."""

    keys: SecretStr | None = None
    """NAME=KEY[,NAME=KEY], each key 32 bytes in base64. The first key encrypts, and all keys decrypt."""


class LogSettings(_Section):
    """The log that our processes write to standard error."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["auto", "json", "pretty"] = "auto"
    """json: one JSON object on each line; pretty: for people; auto: pretty on a terminal, else json."""


class Settings(BaseSettings):
    """All settings. Entry points call ``Settings.load()``."""

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
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    plans: PlansSettings = Field(default_factory=PlansSettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings)
    smtp: SmtpSettings = Field(default_factory=SmtpSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    payloads: PayloadSettings = Field(default_factory=PayloadSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    pools: dict[Annotated[str, Field(pattern=f"^{POOL_NAME.pattern}$")], PoolSettings] = Field(
        default_factory=dict, max_length=POOLS_MAX
    )
    """Name -> pool. Without pools each cluster keeps its own order."""
    quotas: dict[Annotated[str, Field(pattern=QUOTA_KEY)], dict[What, Annotated[int, Field(ge=0, le=QUOTA_MAX)]]] = (
        Field(default_factory=dict, max_length=QUOTAS_MAX)
    )
    """token:NAME, pool:NAME or project:NAME -> what -> the most; with * as NAME: for each without its own entry."""
    retries: Retries = Field(default_factory=Retries)
    """Keys of the policy of retries for all crawlers (docs/retries.md)."""
    ends: Ends = Field(default_factory=Ends)
    """What exit codes and last words of crawlers mean (docs/crawlers.md)."""
    stack: str | None = None
    """The identity of the ``crawlctl dev`` to which this process belongs. Its services name it in each answer."""
    crawlers: Path = Path("crawlers.yaml")
    more_crawlers: Path | None = None
    """Another catalogue, for crawlers that the first catalogue does not have."""

    @field_validator("quotas")
    @classmethod
    def _quotas(cls, value: Quotas) -> Quotas:
        check_quota_keys(value)
        return value

    @field_validator("retries")
    @classmethod
    def _retries(cls, value: Retries) -> Retries:
        check_retries(value)
        return value

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers for all answers of a service."""
        return [] if self.stack is None else [(STACK_HEADER, self.stack)]

    @property
    def owned(self) -> Owned:
        """The volume claim, pull secrets and prefixes of variables, for checks of catalogue entries."""
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
        """Read all sources. Raises ``InvalidRequest`` that names the variable and value of each wrong setting."""
        path = os.environ.get("LIFECYCLE_CONFIG")
        if path and not Path(path).is_file():
            raise InvalidRequest(f"LIFECYCLE_CONFIG: {path!r} is not a file; set it to a TOML file, or unset it")
        try:
            return cls()
        except ValidationError as error:
            lines = []
            for item in error.errors():
                name = "LIFECYCLE_" + "__".join(str(part).upper() for part in item["loc"] if part != "[key]")
                if item["type"] == "extra_forbidden":
                    # The value of an unknown name may be a secret, so it is not shown.
                    lines.append(
                        f"{name}: no setting has this name; see docs/settings.md, or let crawlctl doctor suggest one"
                    )
                    continue
                lines.append(f"{name}: {_masked(name, item.get('input'))} is not allowed; {item['msg']}")
            raise InvalidRequest("; ".join(lines)) from None
        except ValueError as error:
            cure = f"; give JSON: {error.__cause__}" if isinstance(error.__cause__, json.JSONDecodeError) else ""
            raise InvalidRequest(f"{path or 'environment'}: the settings cannot be read: {error}{cure}") from None


def fingerprints(settings: Settings, *more: str) -> dict[str, str]:
    """Return a fingerprint of each setting in ``ALIKE``, and of ``more`` (``gateway.login_key``), by their variables.

    The value itself is the key of the hash, of which 32 bits are left: enough to see that two values differ, and too
    few to find a secret.
    """
    found = {}
    for path in (*ALIKE, *more):
        value = json.dumps(attrgetter(path)(settings), sort_keys=True, default=_revealed).encode()
        name = PREFIX + path.upper().replace(".", "__")
        found[name] = hmac.digest(value, path.encode(), "sha256").hex()[:8]
    return found


def _revealed(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else repr(value)


def _masked(name: str, value: object) -> str:
    if not isinstance(value, str | int | float | None):
        return "the combination of its values"  # a section may contain secrets, so they are not shown
    secret = any(word in name for word in ("PASSWORD", "SECRET", "TOKEN", "KEY", "DATABASE__URL"))
    return "'…'" if secret else repr(value)[:120]


def variables(model: type[BaseModel] = Settings, prefix: str = PREFIX) -> Iterator[str]:
    """Yield the variable of every setting, in the order of the tree."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from variables(kind, f"{prefix}{name.upper()}__")
        else:
            yield prefix + name.upper()


def unread_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable with our prefix that no setting reads, with its cure.

    Such a name is misspelt or belongs to another version. Inside a section pydantic refuses unknown names. At the top
    level it ignores them, because it takes them for variables of other programs.
    """
    known = list(variables())
    for name in sorted(name for name in environment if name.upper().startswith(PREFIX)):
        upper = name.upper()
        # A section can be given as one JSON object. Our tests read variables that services must ignore.
        if upper.startswith(f"{PREFIX}TEST_") or upper in known or any(one.startswith(f"{upper}__") for one in known):
            continue
        same = [one for one in known if one.replace("_", "") == upper.replace("_", "")]
        near = same or difflib.get_close_matches(upper, known, n=1, cutoff=0.8)
        yield name, f"did you mean {near[0]}?" if near else "unset it; docs/settings.md lists all settings"

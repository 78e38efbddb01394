"""All settings as one tree. Entry points read it once and pass the values on.

There are three sources: the defaults, the TOML file that ``LIFECYCLE_CONFIG`` names, and
environment variables. Later sources override earlier ones. Variables have the prefix
``LIFECYCLE_`` and the separator ``__`` between levels (``LIFECYCLE_DATABASE__URL``). Temporal has
its own variables (``TEMPORAL_*``).
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
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from crawler_lifecycle.domain.bounds import MOST
from crawler_lifecycle.domain.crawlers.crawler import check_retries
from crawler_lifecycle.domain.crawlers.pod import ReservedNames
from crawler_lifecycle.domain.ends import Ends
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.domain.names import CRAWLER_NAME, STACK_HEADER
from crawler_lifecycle.domain.pools import POOL_NAME, POOLS_MAX, check_reserve
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.domain.quotas import (
    QUOTA_KEY,
    QUOTA_MAX,
    QUOTAS_MAX,
    Quotas,
    What,
    check_quota_keys,
)
from crawler_lifecycle.domain.resources import Resources, parse_cpu, parse_memory
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.variables import OF_CRAWLERS, OF_WEBHOOKS
from crawler_lifecycle.features.managers.domain.scrapy_cloud import Cloud
from crawler_lifecycle.features.sites.domain.site import SiteLimits, read_entries
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.features.webhooks.domain.definition import WEBHOOKS_MAX

#: The prefix of all environment variables for settings.
PREFIX = "LIFECYCLE_"
#: The folder for all files by default, in the working directory.
STATE_DIR = Path(".crawl")
#: The name of the Temporal worker deployment for workers with a build id but no deployment name.
DEPLOYMENT = "crawler-lifecycle"


#: Settings that must be the same in all processes that use a database.
ALIKE = (
    "pools",
    "quotas",
    "limits",
    "retries",
    "ends",
    "payloads.keys",
    "cluster.kind",
    "cluster.slots",
)


def sqlite_url(file: Path) -> str:
    """Return the database URL of a file.

    SQLAlchemy decodes it, so all special characters are encoded.
    """
    return f"sqlite:///{quote(os.fsencode(file))}"


def _file_url(*parts: str) -> str:
    return STATE_DIR.absolute().joinpath(*parts).as_uri()


#: A prefix for the names of variables that crawlers or webhooks may use.
EnvPrefix = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{2,49}$")]


def _memory(least: str, most: str) -> AfterValidator:
    def check(value: str) -> str:
        if (
            not (parse_memory(least) or 0)
            <= (parse_memory(value) or 0)
            <= (parse_memory(most) or 0)
        ):
            raise ValueError(f"{value!r:.80} is not allowed; give {least} to {most}")
        return value

    return AfterValidator(check)


#: Names of Kubernetes objects by a run's priority.
ByPriority = dict[
    Annotated[int, Field(ge=1, le=5)], Annotated[str, Field(min_length=1, max_length=253)]
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DatabaseSettings(_Section):
    """The database of runs."""

    url: str = Field(default_factory=lambda: sqlite_url(STATE_DIR.absolute() / "lifecycle.db"))
    """`sqlite:////path/file.db`, or `mysql+pymysql://user:password@host/name` (MySQL 8, MariaDB
    10.11+)
    """
    pool_size: int = Field(default=10, ge=1, le=200)
    """maximum number of connections of each worker role and of the gateway"""


class ClusterSettings(_Section):
    """The cluster on which tasks execute."""

    kind: str = "local"
    """`local`, `kubernetes`, or `MODULE:CLASS` of [another kind](clusters.md)"""
    namespace: str = "crawls"
    """Kubernetes namespace in which crawls execute"""
    kubeconfig: Path | None = None
    """kubeconfig file; default: `KUBECONFIG`, or the service account of the pod"""
    context: str | None = None
    """context of the kubeconfig; default: the current one"""
    service_account: str = "crawl"
    """service account of crawl pods; its token is not mounted"""
    image: str | None = None
    """image for crawlers whose catalogue entry names none"""
    pull_secrets: list[str] = Field(default_factory=list)
    """image pull secrets of crawl pods, as a JSON list"""
    scheduled_priority_class: str | None = None
    """default PriorityClass for pods of scheduled runs"""
    onetime_priority_class: str | None = None
    """default PriorityClass for pods of other runs"""
    priority_classes: ByPriority = Field(default_factory=dict)
    """PriorityClass by the run's `priority`, which overrides both defaults: `{"1": "urgent"}`"""
    queue_priority_classes: ByPriority = Field(default_factory=dict)
    """WorkloadPriorityClass by the run's `priority`, for crawlers with a `queue`"""
    volume_claim: str | None = None
    """shared volume for files and saved state"""
    volume_path: Path | None = None
    """path at which our processes mount this volume"""
    files_url: str | None = None
    """`s3://bucket/prefix` instead of a volume"""
    job_ttl_s: int = Field(default=3_600, ge=60, le=31_536_000)
    """seconds for which an ended Job [is kept](kubernetes-polls.md#what-is-let-go-of); at least
    60
    """
    connect_timeout_s: float = Field(default=3.0, gt=0, le=30)
    """maximum seconds to connect to the Kubernetes API"""
    read_timeout_s: float = Field(default=10.0, gt=0, le=60)
    """maximum seconds to wait for each response from the Kubernetes API"""
    state_dir: Path = Field(default_factory=lambda: STATE_DIR.absolute() / "cluster")
    """folder of the local cluster; the scheduler service and the workers need the same folder"""
    slots: int = Field(default=4, ge=1, le=1024)
    """maximum number of parallel local tasks; if it is set, it also applies to Kubernetes with
    [pools](pools.md)
    """
    cgroup: str = Field(default="auto", pattern=r"^(auto|off|/.*)$")
    """how the [limits](clusters.md#limits-of-memory-and-processors) of local tasks are enforced:
    `auto`, `off`, or a folder of cgroups
    """
    run_as: str | None = Field(default=None, min_length=1, max_length=64)
    """[user](clusters.md#whose-user-a-crawler-is) that runs local crawlers"""
    keep_days: float = Field(default=14, ge=0)
    """days for which folders of local tasks are kept; 0: forever"""
    env_prefix: EnvPrefix = OF_CRAWLERS
    """prefix of the variables that [`secrets`](crawlers.md) may name"""


class SchedulerSettings(_Section):
    """The scheduler service: its address for workers, and the host and port on which our reference
    service listens.
    """

    url: str = "http://127.0.0.1:8600"
    """address at which workers and the gateway reach the scheduler service"""
    host: str = "127.0.0.1"
    """address to listen on"""
    port: int = Field(default=8600, ge=0, le=65535)
    """port to listen on; for each port setting, 0 means any free port"""
    timeout_s: float = Field(default=20.0, gt=0)
    """maximum seconds for each call to the scheduler service"""
    token: SecretStr | None = None
    """token that the scheduler service requires; optional on loopback"""


class UrlSettings(_Section):
    """The address of the archive or of the event sink."""

    url: str


class CodeSettings(_Section):
    """Deployed code of crawlers."""

    url: str | None = None
    """where the gateways store [packages](deploy-crawlers.md): a folder, or `s3://bucket/prefix`;
    default: `code` in the archive's bucket or, if the archive is a folder, in the state folder"""
    cache_dir: Path = Field(default_factory=lambda: STATE_DIR.absolute() / "code-cache")
    """folder in which a gateway keeps code from a bucket"""
    keep: int = Field(default=20, ge=1, le=500)
    """versions of each package that are kept even if no run or schedule needs them"""


class GatewaySettings(_Section):
    """The HTTP API: its address for programs, its host and port, and its access rules."""

    url: str | None = None
    """address at which `crawlctl` and crawlers reach the gateway"""
    web_ui_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$", max_length=500)
    """address of [the web UI](web-ui.md); default: `LIFECYCLE_GATEWAY__URL`"""
    token: SecretStr | None = None
    """token that `crawlctl` and our services send"""
    host: str = "127.0.0.1"
    """address to listen on"""
    port: int = Field(default=8500, ge=0, le=65535)
    """port to listen on"""
    auth_disabled: bool = False
    """whether the gateway requires no tokens; allowed on loopback only"""
    callers_file: Path | None = None
    """TOML file of [tokens and roles](access.md#tokens-and-roles)"""
    task_key: SecretStr | None = None
    """key that signs [crawlers' tokens](access.md#tokens-and-roles); the scheduler service needs
    the same key
    """
    login_key: SecretStr | None = None
    """key that signs sessions: at least 32 bytes, and the same on all gateways"""
    temporal_ui: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """address of our namespace in Temporal's UI, to which the web UI links"""
    hosts: list[str] = Field(default_factory=list)
    """host names that requests may use in addition to that of `LIFECYCLE_GATEWAY__URL`; by default,
    any host name is allowed
    """
    max_reads_per_s: float = Field(default=100.0, gt=0)
    """maximum reads per second; this limit and the next three apply to each token"""
    max_writes_per_s: float = Field(default=20.0, gt=0)
    """maximum changes per second"""
    max_concurrent_requests: int = Field(default=50, ge=1)
    """maximum concurrent requests"""
    max_concurrent_streams: int = Field(default=20, ge=1)
    """maximum concurrent streams and followed logs; a session may have half as many"""
    outbox_retry_s: float = Field(default=15.0, gt=0)
    """seconds between searches for accepted work that has not been started"""
    scrapyd: bool = False
    """whether the gateway serves [clients of scrapyd](scrapyd.md)"""
    scrapyd_project: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """the project with the crawlers that have no package, for clients of scrapyd"""


class OidcGrant(_Section):
    """The role and project of people whose claim contains a certain value."""

    role: Literal["read", "operate", "admin"]
    project: Annotated[str, Field(pattern=rf"^(\*|{CRAWLER_NAME.pattern})$")] = DEFAULT


class OidcSettings(_Section):
    """Logins through an OpenID Connect provider, the issuer. Disabled without ``issuer``."""

    issuer: str | None = Field(
        default=None, pattern=r"^(https://|http://localhost:|http://127\.0\.0\.1:)[^\s?#]+$"
    )
    """address of the issuer, exactly as in its tokens"""
    client_id: str | None = Field(default=None, min_length=1, max_length=500)
    """client id under which the issuer knows the gateway"""
    client_secret: SecretStr | None = None
    """client secret; a public client has none"""
    audience: str | None = Field(default=None, min_length=1, max_length=500)
    """audience of API tokens; default: the client id"""
    scopes: str = Field(default="openid email profile", pattern=r"(^| )openid( |$)")
    """scopes requested at login"""
    name_claim: str = "email"
    """claim that contains a person's name"""
    roles_claim: str = "groups"
    """claim that determines a person's role and project"""
    roles: dict[str, OidcGrant] = Field(default_factory=dict, max_length=1000)
    """JSON: the [role and project](sign-in.md#who-may-what) for each value of this claim"""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.issuer is not None and not (self.client_id and self.roles):
            raise ValueError(
                'issuer is set, so client_id and roles, such as {"GROUP": {"role": "read"}}, '
                "must be too"
            )
        return self


class PusherSettings(_Section):
    """Pushes to browsers through Pusher Channels. Needs ``app_id`` and the extra ``pusher``."""

    app_id: str | None = None
    """number of the Pusher app; if unset, nothing is [pushed](events.md#pusher)"""
    key: str | None = None
    """key of the app"""
    secret: SecretStr | None = None
    """secret of the app"""
    cluster: str | None = None
    """Pusher cluster of the app; needed unless a host is set"""
    host: str | None = None
    """host name of your own server"""
    port: int | None = Field(default=None, ge=1, le=65535)
    """port of your own server; default: 443, or 80 without TLS"""
    tls: bool = True
    """whether pushes use HTTPS"""
    channel: str = "private-crawls private-crawl-run-{run_id}"
    """channels to which every event is pushed"""
    timeout_s: float = Field(default=1.4, gt=0, le=1.4)
    """maximum seconds for each of three tries"""

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


#: Bytes of memory for one cached run: the measured 180 KiB (``python -m benchmarks taking-up``),
#: rounded up.
CACHED_BYTES = 200 * 1024


class WorkerSettings(_Section):
    """A worker process."""

    grace_s: float = Field(default=20.0, ge=0)
    """seconds that running activities have after SIGTERM"""
    threads: int = Field(default=16, ge=1, le=512)
    """maximum concurrent activities of each role"""
    cache_memory: Annotated[str, _memory("1Mi", "1Ti")] = "256Mi"
    """memory for cached workflows ([how much](capacity.md#how-large-must-a-worker-be))"""
    health_host: str = "127.0.0.1"
    """address on which `/healthz` and `/readyz` are served"""
    health_port: int = Field(default=8700, ge=0, le=65535)
    """port on which `/healthz` and `/readyz` are served"""
    metrics_host: str = "127.0.0.1"
    """address on which [`/metrics`](observability.md) is served"""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """port on which `/metrics` is served; if unset, there are no metrics"""
    wake_ups: bool = True
    """whether the `cluster` role uses [wake-ups](truth.md#wake-ups); the `observer` role always
    does
    """
    deployment: str | None = Field(default=None, max_length=60, pattern=r"^[A-Za-z0-9_-]+$")
    """name of the Temporal worker deployment; default with a build id: `crawler-lifecycle`; a name
    without a build id needs `TEMPORAL_WORKER_BUILD_ID`
    """
    build_id: str | None = Field(
        default=None, max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
    )
    """build id for [worker versioning](deployment.md#worker-versions); if unset, versioning
    is off
    """

    def cached(self) -> int:
        """Return the number of workflows that one role keeps in memory."""
        return (parse_memory(self.cache_memory) or 0) // CACHED_BYTES

    def version(self) -> tuple[str, str] | None:
        """Return deployment and build of versioned workers; ``None`` for unversioned workers.

        Raises ``InvalidRequest`` if the deployment has a name but the build has none.
        """
        deployment = self.deployment or os.environ.get("TEMPORAL_DEPLOYMENT_NAME") or None
        if deployment is None and self.build_id is None:
            return None
        build = self.build_id or os.environ.get("TEMPORAL_WORKER_BUILD_ID")
        if not build:
            raise InvalidRequest(
                f"LIFECYCLE_WORKER__BUILD_ID: missing for the deployment {deployment!r}; set it to "
                "a name that no "
                "other build has, for example a commit; or unset LIFECYCLE_WORKER__DEPLOYMENT and "
                "TEMPORAL_DEPLOYMENT_NAME"
            )
        return deployment or DEPLOYMENT, build


class PoolLimits(_Section):
    """The limits of a pool of runs, for people and settings."""

    max: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum number of parallel tasks; by default, as many as the cluster accepts."""
    weight: float = Field(default=1.0, ge=0.01, le=1000)
    """Its share of slots, in proportion to the weights of other waiting pools."""
    reserved: int = Field(default=0, ge=0, le=1_000_000)
    """Slots that other pools leave free for it."""
    project: Annotated[str, Field(pattern=f"^{CRAWLER_NAME.pattern}$")] | None = None
    """The only project whose runs may use the pool; by default, all projects may."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_reserve(self.max, self.reserved)
        return self


class PoolSettings(PoolLimits):
    """One pool of runs."""

    queue: str | None = Field(default=None, min_length=1, max_length=253)
    """Kueue's LocalQueue for its Jobs, unless the crawler names another. Kueue then decides,
    instead of max and reserved.
    """

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if self.queue is not None and (self.max is not None or self.reserved):
            raise ValueError(
                "queue: Kueue decides in this pool; set max and reserved as quotas of its "
                "ClusterQueue"
            )
        return self


class UserCodeSettings(_Section):
    """Users' managers and functions: their modules and limits, and the meaning of units and
    projects.
    """

    modules: list[str] = Field(default_factory=list)
    """modules with [managers](managers.md) and functions of [graphs](graphs.md) for the
    `user-code` role, such as `["shop.managers"]`. `"*"` means every module directly in the folder
    that imports `crawler_lifecycle.managers` or `crawler_lifecycle.graphs`, or contains only
    imports, functions, classes and assignments. Anyone who may start graphs may call these
    functions
    """
    folder: Path = Field(default_factory=Path.cwd)
    """folder in which modules are searched first"""
    environment: list[str] = Field(default_factory=list)
    """variables of the worker that user code gets"""
    hook_timeout_s: float = Field(default=60.0, gt=0, le=600)
    """maximum seconds for each hook of a manager"""
    page_timeout_s: float = Field(default=300.0, gt=0, le=900)
    """maximum seconds for one page of items from a source, and for a resume"""
    processes: int = Field(default=100, ge=1, le=1000)
    """maximum user-code processes on each worker; a process takes 10 MiB"""
    memory: str = "1Gi"
    """maximum private memory of each user-code process"""
    functions: int = Field(default=4, ge=1, le=100)
    """maximum concurrent graph functions on each worker"""
    queue: str | None = None
    """if set, the worker executes only steps with this `queue`"""
    result: Annotated[str, _memory("1Ki", "1Gi")] = "64Mi"
    """maximum size of a function's result as JSON, from 1Ki to 1Gi"""
    buffer: int = Field(default=1000, ge=1, le=100_000)
    """number of items that may wait for a slot before the source pauses"""
    unit_cpu: str | None = None
    """CPUs of one [unit](managers.md#scrapy-clouds-words-in-ours), such as `500m`"""
    unit_memory: str = "1Gi"
    """memory of one unit"""
    projects: dict[str, str] = Field(default_factory=dict)
    """prefix of crawlers' names for each project: `{"1234": "eu-"}`; other projects are refused"""

    @field_validator("modules")
    @classmethod
    def _modules(cls, value: list[str]) -> list[str]:
        for name in value:
            if (
                name != "*" and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII)
            ) or len(name) > 150:
                raise ValueError(
                    f"{name!r:.80} is not a module name; write it as in an import, such as "
                    "shop.managers"
                )
        return list(dict.fromkeys(value))

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, value: list[str]) -> list[str]:
        for name in value:
            if name.upper().startswith((PREFIX, "TEMPORAL_")):
                raise ValueError(
                    f"{name!r:.80} is only for our own processes; remove it from this setting"
                )
        return value

    @field_validator("queue")
    @classmethod
    def _queue(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(
            r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", value, re.ASCII
        ):
            raise ValueError(
                f"{value!r:.80} is not a pool name; give 1 to 50 letters, digits, dots, dashes, "
                "underscores"
            )
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
                raise ValueError(
                    f"{project!r:.80}: {prefix!r:.80} cannot begin a crawler's name; use a-z, "
                    "0-9, _ . -"
                )
        return value

    def cloud(self) -> Cloud:
        """Return units and projects in the form that ``domain.managers.scrapy_cloud`` needs."""
        return Cloud(Resources(cpu=self.unit_cpu, memory=self.unit_memory), self.projects)


class WebhookSettings(_Section):
    """Webhooks: the addresses that they may call, and how many are served concurrently."""

    networks: list[str] = Field(default_factory=list)
    """networks that webhooks may call in addition to the public internet"""
    loopback: bool = False
    """whether webhooks may call this machine and use http; set by `crawlctl dev`"""
    max_concurrent_deliveries: int = Field(default=100, ge=1, le=512)
    """maximum number of webhooks that one worker serves concurrently"""
    env_prefix: EnvPrefix = OF_WEBHOOKS
    """prefix of the variables that contain secrets of webhooks"""

    @field_validator("networks")
    @classmethod
    def _networks(cls, value: list[str]) -> list[str]:
        for entry in value:
            ipaddress.ip_network(entry)
        return value

    @property
    def rules(self) -> WebhookRules:
        """The rules for addresses, which are checked when a webhook is created and at each
        delivery.
        """
        return WebhookRules(
            [ipaddress.ip_network(network) for network in self.networks],
            self.loopback,
            self.env_prefix,
        )


class SmtpSettings(_Section):
    """The mail server for email alerts."""

    host: str | None = None
    """host name of the mail server"""
    port: int = Field(default=587, ge=1, le=65535)
    """port of the mail server"""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls`, `tls` (port 465), or `none`, which is allowed without a password or on loopback
    only
    """
    user: str | None = None
    """user name at the mail server; if unset, there is no login"""
    password: SecretStr | None = None
    """password at the mail server"""
    sender: str | None = Field(default=None, pattern=r"^[^\r\n]*[^\s@]@[^\s@]+$", max_length=255)
    """sender of the messages, such as `Crawls <crawls@example.com>`"""

    def options(self) -> dict[str, Any]:
        """Return the arguments of the mailer."""
        return {**self.model_dump(), "password": self.password and self.password.get_secret_value()}

    @model_validator(mode="after")
    def _private(self) -> Self:
        if self.tls == "none" and self.password is not None and not is_loopback(self.host or ""):
            raise ValueError(
                "tls: none sends the password in plain text; give starttls or tls, or no password"
            )
        return self


class AuditSettings(_Section):
    """Audits, which compare database, cluster and Temporal, and repair differences."""

    interval_s: float = Field(default=900.0, ge=0)
    """seconds between scheduled audits; 0: no scheduled audits"""
    repair: bool = True
    """whether scheduled audits repair differences instead of only reporting them"""
    grace_s: float = Field(default=120.0, ge=0)
    """seconds before an audit takes over a run without a workflow, or repeats a delivery"""
    orphan_grace_s: float = Field(default=300.0, ge=0)
    """seconds before an audit ends a task that outlives its recorded end"""
    start_grace_s: float = Field(default=30.0, ge=0)
    """seconds before an audit starts an accepted run that nobody has started"""


class LimitSettings(_Section):
    """The maximum numbers of managers, graphs, schedules and webhooks."""

    managers: int = Field(default=MOST["managers"], ge=1, le=100_000)
    """maximum number of open managers"""
    graphs: int = Field(default=MOST["graphs"], ge=1, le=100_000)
    """maximum number of open graphs"""
    schedules: int = Field(default=MOST["schedules"], ge=1, le=100_000)
    """maximum number of schedules, including paused schedules"""
    webhooks: int = Field(default=MOST["webhooks"], ge=1, le=WEBHOOKS_MAX)
    """maximum number of webhooks, including paused webhooks; at most 1000"""


class PayloadSettings(_Section):
    """The data that we send through Temporal. It is readable there unless keys are set."""

    keys: SecretStr | None = None
    """keys as `NAME=KEY[,NAME=KEY]`, each of 32 bytes in base64. The first key
    [encrypts](security.md#encrypted-histories), and all keys decrypt
    """


class LogSettings(_Section):
    """The log that our processes write to standard error."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """lowest level that is logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`"""
    format: Literal["auto", "json", "pretty"] = "auto"
    """`json`, `pretty` for people, or `auto`, which means `pretty` on a terminal and otherwise
    `json`
    """


class Settings(BaseSettings):
    """All settings. Entry points call ``Settings.load()``."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", env_ignore_empty=True
    )

    config: Path | None = None
    """path of the TOML file"""
    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    archive: UrlSettings = Field(default_factory=lambda: UrlSettings(url=_file_url("archive")))
    """where the [zips](archive.md) are stored: a folder, or `s3://bucket/prefix`"""
    code: CodeSettings = Field(default_factory=CodeSettings)
    events: UrlSettings = Field(default_factory=lambda: UrlSettings(url=_file_url("events.jsonl")))
    """receiver of the [events](events.md#event-bus-and-file): a file, or `eventbridge://NAME`"""
    pusher: PusherSettings = Field(default_factory=PusherSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    user_code: UserCodeSettings = Field(default_factory=UserCodeSettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings)
    smtp: SmtpSettings = Field(default_factory=SmtpSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    payloads: PayloadSettings = Field(default_factory=PayloadSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    pools: dict[Annotated[str, Field(pattern=f"^{POOL_NAME.pattern}$")], PoolSettings] = Field(
        default_factory=dict, max_length=POOLS_MAX
    )
    """JSON: [pools](pools.md), which must be the same in all services"""
    quotas: dict[
        Annotated[str, Field(pattern=QUOTA_KEY)],
        dict[What, Annotated[int, Field(ge=0, le=QUOTA_MAX)]],
    ] = Field(default_factory=dict, max_length=QUOTAS_MAX)
    """JSON: [quotas](access.md#quotas) of tokens, pools and projects, which must be the same in all
    services
    """
    sites: Annotated[dict[str, SiteLimits], BeforeValidator(read_entries)] = Field(
        default_factory=dict
    )
    """JSON: [limits of sites](sites.md#limits), which the gateway applies when it starts"""
    retries: Retries = Field(default_factory=Retries)
    """JSON: [retries](resuming.md#automatic-retries) of all crawlers"""
    ends: Ends = Field(default_factory=Ends)
    """JSON: [what exit codes and finish reasons mean](crawlers.md#ends), for all crawlers"""
    stack: str | None = None
    """[stack](cli.md#dev) of the process; set only by `crawlctl dev`"""
    catalogue: Path = Path("crawlers.yaml")
    """path of the catalogue, which the scheduler service reads"""
    extra_catalogue: Path | None = None
    """path of a second catalogue, for crawlers that the first does not contain"""

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
        """Headers for all responses from a service."""
        return [] if self.stack is None else [(STACK_HEADER, self.stack)]

    @property
    def code_url(self) -> str:
        """The location of deployed code."""
        archive = self.archive.url.rstrip("/")
        beside = f"{archive}/code" if archive.startswith("s3:") else _file_url("code")
        return self.code.url or beside

    @property
    def owned(self) -> ReservedNames:
        """The volume claim, pull secrets and variable prefixes that catalogue entries are checked
        against.
        """
        of = self.cluster
        return ReservedNames(
            of.volume_claim, frozenset(of.pull_secrets), of.env_prefix, self.webhooks.env_prefix
        )

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
        """Read all sources.

        Raises ``InvalidRequest``, which names the variable and value of each wrong setting.
        """
        path = os.environ.get("LIFECYCLE_CONFIG")
        if path and not Path(path).is_file():
            raise InvalidRequest(
                f"LIFECYCLE_CONFIG: {path!r} is not a file; set it to a TOML file, or unset it"
            )
        try:
            return cls()
        except ValidationError as error:
            lines = []
            for item in error.errors():
                name = "LIFECYCLE_" + "__".join(
                    str(part).upper() for part in item["loc"] if part != "[key]"
                )
                if item["type"] == "extra_forbidden":
                    # The value of an unknown variable may be a secret, so it is not shown.
                    lines.append(
                        f"{name}: no setting has this name; see docs/settings.md, or let crawlctl "
                        "doctor suggest one"
                    )
                    continue
                cause = item.get("ctx", {}).get("error")
                # The messages about a single value do not contain the name of its variable.
                if isinstance(cause, InvalidRequest) and not isinstance(item.get("input"), str):
                    lines += [f"{name}: {text}" for text in cause.texts]
                    continue
                lines.append(
                    f"{name}: {_masked(name, item.get('input'))} is not allowed; {item['msg']}"
                )
            raise InvalidRequest("; ".join(lines)) from None
        except ValueError as error:
            fix = (
                f"; give JSON: {error.__cause__}"
                if isinstance(error.__cause__, json.JSONDecodeError)
                else ""
            )
            raise InvalidRequest(
                f"{path or 'environment'}: the settings cannot be read: {error}{fix}"
            ) from None


def fingerprints(settings: Settings, *more: str) -> dict[str, str]:
    """Return a fingerprint of each setting in ``ALIKE`` and in ``more`` (``gateway.login_key``), by
    variable.

    The value itself is the key of the hash. Only 32 bits of the hash are kept, which is enough to
    show that two values differ, but too little to find a secret.
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
        # A section may contain secrets, so they are not shown.
        return "the combination of its values"
    secret = any(word in name for word in ("PASSWORD", "SECRET", "TOKEN", "KEY", "DATABASE__URL"))
    return "'…'" if secret else repr(value)[:120]


def variables(model: type[BaseModel] = Settings, prefix: str = PREFIX) -> Iterator[str]:
    """Yield the variable of each setting, in the order of the tree."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from variables(kind, f"{prefix}{name.upper()}__")
        else:
            yield prefix + name.upper()


def unread_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable with our prefix that no setting reads, with its fix.

    Such a name is misspelt or belongs to another version. Within a section, pydantic refuses
    unknown names. At the top level, it ignores them, because they may be variables of other
    programs.
    """
    known = list(variables())
    for name in sorted(name for name in environment if name.upper().startswith(PREFIX)):
        upper = name.upper()
        # A section can be given as one JSON object. Our tests read variables that services must
        # ignore.
        if (
            upper.startswith(f"{PREFIX}TEST_")
            or upper in known
            or any(name.startswith(f"{upper}__") for name in known)
        ):
            continue
        same = [name for name in known if name.replace("_", "") == upper.replace("_", "")]
        near = same or difflib.get_close_matches(upper, known, n=1, cutoff=0.8)
        yield (
            name,
            f"did you mean {near[0]}?" if near else "unset it; docs/settings.md lists all settings",
        )

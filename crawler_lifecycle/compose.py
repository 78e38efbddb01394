"""The composition root: builds adapters from settings, and activities from adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.audits.audit import AuditActivities
from crawler_lifecycle.activities.audits.giving_up import GivingUp
from crawler_lifecycle.activities.audits.parents import ParentAudit, ParentKind
from crawler_lifecycle.activities.cancellation import CancellationActivities
from crawler_lifecycle.activities.child_runs import ChildRuns
from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.activities.deletion import DeletionActivities
from crawler_lifecycle.activities.deployment import DeploymentActivities
from crawler_lifecycle.activities.initiation import InitiationActivities
from crawler_lifecycle.activities.reconciliation import ReconciliationActivities
from crawler_lifecycle.activities.retries import Policies, RetryActivities
from crawler_lifecycle.activities.run_files import FileReading, RunFiles
from crawler_lifecycle.activities.shared import activities_in
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.adapters.catalogue import EmptyCatalogue, YamlCatalogue
from crawler_lifecycle.adapters.event_file import JsonLinesSink
from crawler_lifecycle.adapters.eventbridge import EventBridgeSink
from crawler_lifecycle.adapters.outbox_notifier import OutboxNotifier
from crawler_lifecycle.adapters.pusher import PusherNotifier
from crawler_lifecycle.adapters.scheduler import HttpSchedulerClient
from crawler_lifecycle.adapters.smtp import SmtpMailer
from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.ends import NO_ENDS, Ends
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.features.catalogue.adapters import StoredCatalogue, StoredEntries
from crawler_lifecycle.features.managers.domain.scrapy_cloud import Cloud
from crawler_lifecycle.features.packages.adapters.code_store import open_code_store
from crawler_lifecycle.features.packages.ports import CodeStore, Inspector
from crawler_lifecycle.features.webhooks.adapters import HttpWebhooks
from crawler_lifecycle.features.webhooks.ports import WebhookSenders
from crawler_lifecycle.ports.cluster import Cluster, LiveFiles, TaskFiles
from crawler_lifecycle.ports.protocols import (
    Catalogue,
    EventSink,
    FileArchive,
    FilesPlace,
    FunctionHosts,
    KnowsRuns,
    Notifier,
    SchedulerClient,
    UserCodeProcesses,
    WorkflowDirectory,
)
from crawler_lifecycle.store.base.unit import Told
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.workflows.audit import CrawlAuditWorkflow
from crawler_lifecycle.workflows.deletion import RunDeletionWorkflow
from crawler_lifecycle.workflows.exports import CrawlEventWorkflow, RunExportWorkflow
from crawler_lifecycle.workflows.lifecycle import CrawlerLifecycleWorkflow
from crawler_lifecycle.workflows.policies import POLICIES

from .activities import meters
from .domain import names
from .settings import Settings

if TYPE_CHECKING:
    from crawler_lifecycle.adapters.archive.bundles import S3Bundles

#: The workflows that the role ``workflows`` executes.
WORKFLOWS: tuple[type, ...] = (
    CrawlerLifecycleWorkflow,
    RunExportWorkflow,
    RunDeletionWorkflow,
    CrawlEventWorkflow,
    CrawlAuditWorkflow,
    *(feature.load(name) for feature in FEATURES for name in feature.workflows),
)

#: Role of a worker -> the task queue that it serves.
ROLES: dict[str, str] = {
    "workflows": names.QUEUE_MAIN,
    "cluster": names.QUEUE_CLUSTER,
    "control": names.QUEUE_CONTROL,
    "export": names.QUEUE_EXPORT,
    "audit": names.QUEUE_AUDIT,
    "user-code": names.QUEUE_USER_CODE,
    "webhooks": names.QUEUE_WEBHOOKS,
}

#: The role that executes user code in separate processes. In addition, each worker with this role
#: serves its own queue.
USER_CODE = "user-code"

#: The role that delivers to webhooks. No other role calls addresses that users choose.
WEBHOOKS = "webhooks"

#: Task queue -> role that serves it.
SERVED_BY: dict[str, str] = {
    **{queue: role for role, queue in ROLES.items()},
    names.QUEUE_FUNCTIONS: USER_CODE,
}

#: A role without a task queue: it notices changes on the cluster and wakes the affected runs.
OBSERVER = "observer"

#: Roles whose activities call the cluster. Other roles get no cluster client, and no cluster token
#: in ``deploy/``.
ASKING = frozenset({"cluster", "control", "audit"})

#: Activities from other queues that the control queue serves, too. After a stop request, the
#: control queue executes polls and the verdict until the end is proved. It also ends managers and
#: graphs.
ON_CONTROL_TOO = (
    "get_active_running_tasks",
    "get_history_statuses_to_sync",
    "get_bulk_task_history_data",
    "reconcile_tasks",
    "sync_statuses",
    "count_alive_tasks",
    "update_run_status",
    "open_manager",
    "end_manager",
    "advance_graph",
    "end_graph",
)


@dataclass
class Parts:
    """The external systems that a role's activities use.

    Each role has its own database connections.
    """

    store: Store
    cluster: Cluster
    files: TaskFiles
    catalogue: Catalogue
    scheduler: SchedulerClient
    notifiers: Sequence[Notifier]
    sink: EventSink
    archive: FileArchive
    directory: WorkflowDirectory
    audit: AuditRules = field(default_factory=AuditRules)
    hosts: UserCodeProcesses | None = None
    """The processes that execute users' managers, which only workers of the role ``user-code``
    have.
    """
    functions: FunctionHosts | None = None
    inspector: Inspector | None = None
    code: CodeStore | None = None
    """The code store, which only workers of the role ``user-code`` have, as the inspector."""
    cloud: Cloud = field(default_factory=Cloud)
    buffer: int = 1000
    """The maximum number of items from a manager's source that may wait for a slot."""
    live_files: LiveFiles | None = None
    """A reader of tasks' files; ``None`` if this worker cannot read these files."""
    webhooks: WebhookSenders = field(default_factory=HttpWebhooks)
    retries: Retries = field(default_factory=Retries)
    ends: Ends = NO_ENDS
    places: Sequence[FilesPlace] = ()
    """The storage locations from which the files of deleted runs are removed."""

    @property
    def policies(self) -> Policies:
        """The policies for the outcomes and the retries of tasks."""
        return Policies(self.store.retries, self.catalogue, self.retries, self.ends)

    @property
    def children(self) -> ChildRuns:
        """Starts and stops runs for managers, graphs and schedules."""
        s = self.store
        return ChildRuns(
            s.initiation,
            s.stops,
            s.runs,
            self.directory,
            self.catalogue,
            self.scheduler,
            s.versions,
        )

    def reading(self, parent: str) -> FileReading:
        """Return the reader of files for user code in this manager or graph
        (``FileReading.parent``).
        """
        s = self.store
        archived = ArchivedFiles(self.archive)
        files = RunFiles(
            s.tasks, s.exports, self.live_files, archived, "this worker cannot read them"
        )
        return FileReading(s.runs, files, parent)


def build_parts(settings: Settings, directory: WorkflowDirectory, role: str) -> Parts:
    """Build the adapters that this role needs from the settings.

    Raises ``InvalidRequest``, which names the invalid setting.
    """
    kind = kind_of(settings.cluster)
    store = build_store(settings)
    stored = StoredEntries(store.entries, settings.owned)
    return Parts(
        store=store,
        cluster=kind.cluster() if role in {*ASKING, OBSERVER} else _NoCluster(role),
        files=kind.files(build_bundles(settings)),
        catalogue=StoredCatalogue(build_catalogue(settings), stored),
        scheduler=build_scheduler(settings),
        notifiers=build_notifiers(settings),
        sink=build_sink(settings),
        archive=build_archive(settings),
        directory=directory,
        audit=AuditRules(
            settings.audit.grace_s, settings.audit.orphan_grace_s, settings.audit.start_grace_s
        ),
        cloud=settings.user_code.cloud(),
        buffer=settings.user_code.buffer,
        live_files=kind.live_files() if role == USER_CODE else None,
        code=build_code_store(settings) if role == USER_CODE else None,
        webhooks=build_webhooks(settings),
        places=build_places(settings),
        retries=settings.retries,
        ends=settings.ends,
    )


def build_code_store(settings: Settings) -> CodeStore:
    """Return the store of deployed code, without connecting to it. Raises ``InvalidRequest``."""
    return open_code_store(settings.code_url, settings.code.cache_dir)


def build_webhooks(settings: Settings) -> WebhookSenders:
    """Return the sender of webhook deliveries and alerts."""
    mailer = SmtpMailer(**settings.smtp.options())
    page = settings.gateway.web_ui_url or settings.gateway.url
    return HttpWebhooks(settings.webhooks.rules, mailer, page)


def build_store(settings: Settings, told: Told | None = meters.committed) -> Store:
    """Open the database with new connections.

    ``open_store`` explains ``told``. Raises ``InvalidRequest``.
    """
    url = settings.database.url
    pool_size = settings.database.pool_size
    most = settings.limits.model_dump()
    pools = build_pools(settings)
    quotas = settings.quotas
    return open_store(url, pool_size=pool_size, told=told, most=most, pools=pools, quotas=quotas)


def build_pools(settings: Settings) -> Pools:
    """Return the pools in the settings and the cluster's slots. Raises ``InvalidRequest``."""
    named = {name: Pool(**pool.model_dump()) for name, pool in settings.pools.items()}
    kind = kind_of(settings.cluster)
    pools = Pools(named, *kind.capacity(), window=kind.window)
    pools.check_all("LIFECYCLE_POOLS: ")
    return pools


def build_scheduler(settings: Settings, most_s: float = math.inf) -> HttpSchedulerClient:
    """Return a client of the scheduler service, which waits at most ``most_s`` seconds for an
    answer.
    """
    of = settings.scheduler
    token = of.token.get_secret_value() if of.token else None
    return HttpSchedulerClient(of.url, min(of.timeout_s, most_s), token=token)


def build_catalogue(settings: Settings) -> Catalogue:
    """Return the catalogue of the file, from which a worker reads the limits and ``partial_ok`` of
    crawlers. An installation with its own scheduler service needs no file: if the default file is
    missing, the catalogue is empty.

    A file that the settings name must exist and be valid. Raises ``CatalogueError``.
    """
    if not settings.catalogue.exists() and "catalogue" not in settings.model_fields_set:
        return EmptyCatalogue()
    return YamlCatalogue(settings.catalogue, settings.extra_catalogue, settings.owned)


def build_archive(settings: Settings) -> FileArchive:
    """Open the archive for the zip files of runs. Raises ``InvalidRequest``."""
    return open_archive(settings.archive.url)


def build_bundles(settings: Settings) -> S3Bundles | None:
    """Open the storage to which pods upload their files.

    Return ``None`` if this kind of cluster uses no uploads or no storage is set. Raises
    ``InvalidRequest``.
    """
    url = settings.cluster.files_url
    return open_bundles(url) if url is not None and kind_of(settings.cluster).uploads else None


def open_bundles(url: str, *, probing: bool = False) -> S3Bundles:
    """Return the storage for bundles of tasks in pods, without connecting to it.

    If ``probing`` is true, time limits are short, because a person is waiting. Raises
    ``InvalidRequest``.
    """
    from crawler_lifecycle.adapters.archive.bundles import S3Bundles

    return S3Bundles(url, probing=probing)


def build_places(settings: Settings) -> list[FilesPlace]:
    """Return the locations where tasks leave files: a bucket, a volume, both or neither.

    Raises ``InvalidRequest``.
    """
    places = (build_bundles(settings), kind_of(settings.cluster).volume())
    return [place for place in places if place is not None]


def build_sink(settings: Settings) -> EventSink:
    """Return the event bus or event file that data pipelines read. Raises ``InvalidRequest``."""
    scheme = settings.events.url.partition(":")[0]
    if scheme == "file":
        return JsonLinesSink(settings.events.url)
    if scheme == "eventbridge":
        return EventBridgeSink(settings.events.url)
    raise InvalidRequest(
        f"LIFECYCLE_EVENTS__URL: {settings.events.url!r} is not allowed; "
        "give file:///path/of/events.jsonl or eventbridge://NAME"
    )


#: Section of the settings -> the class that pushes to front ends. The options in the section are
#: the class's arguments.
NOTIFIERS: Mapping[str, Callable[..., Notifier]] = {"pusher": PusherNotifier}


def build_notifiers(settings: Settings) -> list[Notifier]:
    """Return all notifiers for front ends.

    Each notifier delivers and retries independently. Raises ``InvalidRequest``.
    """
    options = {name: getattr(settings, name).options() for name in NOTIFIERS}
    found = [make(**options[name]) for name, make in NOTIFIERS.items() if options[name] is not None]
    return found or [OutboxNotifier()]


class _NoCluster:
    """A replacement for the cluster in roles outside ``ASKING``.

    Every call to this object is a bug and raises ``RuntimeError``.

    On Kubernetes, such a role has no account and no network access to the API.
    """

    kind = "none"
    log_fades = False

    def __init__(self, role: str) -> None:
        self._role = role

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"workers of the role {self._role!r} have no client of the cluster")

    place = poll = details = stop = kill = inventory = task_records = _refuse


def build_numbers(
    settings: Settings, directory: KnowsRuns | None, roles: Collection[str]
) -> dict[str, KnowsRuns]:
    """Return the systems that can report which run numbers they contain, for these roles:

    Temporal and, for roles in ``ASKING``, the cluster. The keys are human-readable names. Raises
    ``InvalidRequest``.
    """
    found = {} if directory is None else {"Temporal": directory}
    if ASKING & set(roles):
        found["the cluster"] = kind_of(settings.cluster).numbers()
    return found


def build_audit(p: Parts) -> AuditActivities:
    """Return the activities that compare database, cluster and Temporal, and repair differences."""
    giving_up = GivingUp(p.store, p.cluster, p.directory, policies=p.policies)
    return AuditActivities(p.store, p.cluster, p.directory, p.audit, giving_up=giving_up)


def build_parent_audit(p: Parts) -> ParentAudit:
    """Return the audit activity for the rows of those features that have workflows."""
    kinds: list[ParentKind] = [
        feature.load(feature.recover)(p) for feature in FEATURES if feature.recover
    ]
    return ParentAudit(p.store, p.directory, {kind.what: kind for kind in kinds}, p.audit)


def all_activities(parts: Parts) -> dict[str, Callable[..., Any]]:
    """Return all activities by name."""
    p = parts
    s = parts.store
    owners = (
        InitiationActivities(
            s.initiation,
            s.additions,
            s.runs,
            p.directory,
            p.catalogue,
            s.versions,
        ),
        DeploymentActivities(
            s.deployment,
            s.polls,
            s.runs,
            s.tasks,
            s.events,
            p.cluster,
            p.scheduler,
            p.notifiers,
            p.policies,
            s.entries,
        ),
        RetryActivities(s.retries, s.deployment, s.runs, s.tasks, p.policies),
        ReconciliationActivities(
            s.polls, s.tasks, s.events, p.cluster, p.notifiers, s.retries, policies=p.policies
        ),
        CancellationActivities(s.stops, s.polls, s.tasks, s.events, p.cluster, p.notifiers),
        CompletionActivities(
            s.completion,
            s.exports,
            s.deployment,
            s.runs,
            s.tasks,
            s.events,
            p.files,
            p.sink,
            p.archive,
            p.catalogue,
            p.notifiers,
            s.sites.robots_of_run,
        ),
        DeletionActivities(s.deletion, s.runs, p.directory, p.archive, p.places),
        build_audit(p),
        build_parent_audit(p),
        *(
            owner
            for feature in FEATURES
            if feature.activities
            for owner in feature.load(feature.activities)(p)
        ),
    )
    return {name: method for owner in owners for name, method in activities_in(owner).items()}


def activities_of(role: str, parts: Parts, queue: str | None = None) -> list[Callable[..., Any]]:
    """Return the activities of a role on ``queue``, or on its default queue if none is given."""
    queue = queue or ROLES[role]
    wanted = {name for name, policy in POLICIES.items() if policy.queue == queue}
    if role == "control":
        wanted |= set(ON_CONTROL_TOO)
    return [method for name, method in all_activities(parts).items() if name in wanted]


def workflows_of(role: str) -> tuple[type, ...]:
    """Return the workflows that a role executes."""
    if role == "audit":
        return (CrawlAuditWorkflow,)
    return WORKFLOWS if role == "workflows" else ()

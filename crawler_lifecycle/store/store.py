"""The store, which consists of all parts that read and write one SQL database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_type_hints

from sqlalchemy import select

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import MOST
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.pools import NO_POOLS, Pools
from crawler_lifecycle.domain.quotas import NO_QUOTAS, Quotas
from crawler_lifecycle.features.catalogue.store.entries import EntryStore
from crawler_lifecycle.features.graphs.store.graphs import GraphStore
from crawler_lifecycle.features.incidents.store.incidents import IncidentStore
from crawler_lifecycle.features.managers.store.managers import ManagerStore
from crawler_lifecycle.features.managers.store.user_code import UserCodeStore
from crawler_lifecycle.features.packages.store.canaries import CanaryStore
from crawler_lifecycle.features.packages.store.packages import PackageStore
from crawler_lifecycle.features.packages.store.pruning import PruningStore
from crawler_lifecycle.features.packages.store.versions import PackageVersions
from crawler_lifecycle.features.schedules.store.schedules import ScheduleStore
from crawler_lifecycle.features.sites.store.sites import SiteStore
from crawler_lifecycle.features.webhooks.store import WebhookStore
from crawler_lifecycle.store.audits.findings import FindingStore
from crawler_lifecycle.store.audits.reads import AuditStore, OverdueStore
from crawler_lifecycle.store.base.unit import Most, StorePart, Told
from crawler_lifecycle.store.migrations.schema_version import schema_of
from crawler_lifecycle.store.retention.deletion import DeletionStore
from crawler_lifecycle.store.retention.file_retention import FileRetentionStore
from crawler_lifecycle.store.retention.run_numbers import RunNumberStore
from crawler_lifecycle.store.runs.additions import AdditionStore
from crawler_lifecycle.store.runs.adoption import AdoptionStore
from crawler_lifecycle.store.runs.caps import CapStore
from crawler_lifecycle.store.runs.completion import CompletionStore, ExportStore
from crawler_lifecycle.store.runs.corrections import CorrectionStore
from crawler_lifecycle.store.runs.deployment import DeploymentStore
from crawler_lifecycle.store.runs.initiation import InitiationStore
from crawler_lifecycle.store.runs.live_counters import LiveCounterStore
from crawler_lifecycle.store.runs.polls import PollStore
from crawler_lifecycle.store.runs.pools import PoolStore
from crawler_lifecycle.store.runs.quotas import QuotaStore
from crawler_lifecycle.store.runs.reads import RunReader, SweepStore, WakeUpStore
from crawler_lifecycle.store.runs.retries import RetryStore
from crawler_lifecycle.store.runs.search_documents import SearchStore
from crawler_lifecycle.store.runs.stops import StopStore
from crawler_lifecycle.store.runs.tasks import TaskReader

from .access import SUBJECTS, AccessStore, TokenStore
from .engine import Database, open_engine, parse_url
from .events import EventStore, RunReportStore
from .notes import NoteStore


class StoreHealth(StorePart):
    """Queries about the whole database."""

    def ping(self) -> None:
        """Raise ``StoreUnavailable`` unless the database answers and has the schema version of this
        build.
        """
        with self._db.reading() as conn:
            problem = schema_of(conn).problem
        if problem is not None:
            raise StoreUnavailable(problem)

    def projects(self) -> set[str]:
        """Return the projects that have runs, managers, graphs, schedules or webhooks.

        This reads one row per project.
        """
        found: set[str] = set()
        with self._db.reading() as conn:
            for subject in SUBJECTS:
                p = subject.table.c.project
                last = ""
                while (
                    last := conn.execute(
                        select(p).where(p > last).order_by(p).limit(1)
                    ).scalar_one_or_none()
                    or ""
                ):
                    found.add(last)
        return found


@dataclass(frozen=True)
class Store:
    """All parts of the store for one SQLite, MySQL or MariaDB database. Threads can share it.

    Other classes receive only the parts that they need. Unless its docstring states otherwise, a
    method is one transaction, and a second call with the same arguments changes nothing. A method
    that takes a fence raises ``Fenced`` and writes nothing if the attempt or the owner differs.
    Every method raises ``StoreUnavailable`` if the database cannot be used now.
    """

    initiation: InitiationStore
    additions: AdditionStore
    adoption: AdoptionStore
    run_numbers: RunNumberStore
    deployment: DeploymentStore
    retries: RetryStore
    pools: PoolStore
    caps: CapStore
    quotas: QuotaStore
    polls: PollStore
    live_counters: LiveCounterStore
    stops: StopStore
    completion: CompletionStore
    exports: ExportStore
    file_retention: FileRetentionStore
    deletion: DeletionStore
    events: EventStore
    runs: RunReader
    tasks: TaskReader
    search: SearchStore
    sweep: SweepStore
    wake_ups: WakeUpStore
    overdue: OverdueStore
    corrections: CorrectionStore
    audits: AuditStore
    findings: FindingStore
    managers: ManagerStore
    graphs: GraphStore
    user_code: UserCodeStore
    schedules: ScheduleStore
    webhooks: WebhookStore
    sites: SiteStore
    entries: EntryStore
    packages: PackageStore
    canaries: CanaryStore
    package_pruning: PruningStore
    run_reports: RunReportStore
    incidents: IncidentStore
    access: AccessStore
    tokens: TokenStore
    notes: NoteStore
    health: StoreHealth
    database: Database

    @property
    def versions(self) -> PackageVersions:
        """The versions of code that runs can execute."""
        return PackageVersions(self.packages, self.canaries, self.entries)

    @classmethod
    def over(
        cls,
        database: Database,
        clock: Clock | None = None,
        told: Told | None = None,
        most: Most = MOST,
        pools: Pools = NO_POOLS,
        quotas: Quotas = NO_QUOTAS,
    ) -> Store:
        """Return a store whose parts use this database.

        The parameters are those of ``open_store``.
        """
        kinds = {name: kind for name, kind in get_type_hints(cls).items() if kind is not Database}
        parts = {
            name: kind(database, clock, told, most, pools, quotas) for name, kind in kinds.items()
        }
        return cls(**parts, database=database)

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self.database.close()


def open_store(
    url: str,
    *,
    pool_size: int = 5,
    clock: Clock | None = None,
    told: Told | None = None,
    most: Most = MOST,
    pools: Pools = NO_POOLS,
    quotas: Quotas = NO_QUOTAS,
) -> Store:
    """Return a store for the database at ``url``. The store connects on first use.

    If ``clock`` is ``None``, times come from the clock of this machine, but times of task changes
    are never ahead of a server's clock. ``told`` is called in the writing thread after each commit
    that added transitions or corrections. ``most`` is the maximum number of open rows of each kind.
    ``pools`` are the pools whose slots the store assigns. ``quotas`` are the quotas of starts and
    tasks. Raises ``InvalidRequest`` if ``url`` is not the URL of a supported database.
    """
    return Store.over(
        Database(open_engine(parse_url(url), pool_size=pool_size)), clock, told, most, pools, quotas
    )

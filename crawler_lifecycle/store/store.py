"""The ports of the database over one SQL database."""

from __future__ import annotations

from dataclasses import dataclass

from crawler_lifecycle.domain.bounds import MOST
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.ports import Store
from crawler_lifecycle.store.audits.findings import SqlFindings
from crawler_lifecycle.store.audits.reads import SqlAudits, SqlOverdue
from crawler_lifecycle.store.base.unit import Clock, Most, StorePart, Told, utc_now
from crawler_lifecycle.store.graphs.graphs import SqlGraphs
from crawler_lifecycle.store.graphs.reads import SqlGraphReads
from crawler_lifecycle.store.managers.jobs import SqlManagerJobs
from crawler_lifecycle.store.managers.managers import SqlManagers
from crawler_lifecycle.store.managers.plans import SqlPlans
from crawler_lifecycle.store.managers.reads import SqlManagerReads
from crawler_lifecycle.store.migrations.schema_version import schema_of
from crawler_lifecycle.store.retention.file_retention import SqlFileRetention
from crawler_lifecycle.store.retention.run_numbers import SqlRunNumbers
from crawler_lifecycle.store.runs.additions import SqlAdditions
from crawler_lifecycle.store.runs.adoption import SqlAdoption
from crawler_lifecycle.store.runs.completion import SqlCompletion
from crawler_lifecycle.store.runs.corrections import SqlCorrections
from crawler_lifecycle.store.runs.deployment import SqlDeployment
from crawler_lifecycle.store.runs.exports import SqlExports
from crawler_lifecycle.store.runs.initiation import SqlInitiation
from crawler_lifecycle.store.runs.live_counters import SqlLiveCounters
from crawler_lifecycle.store.runs.looks import SqlLooks
from crawler_lifecycle.store.runs.reads import SqlRuns
from crawler_lifecycle.store.runs.stops import SqlStops
from crawler_lifecycle.store.runs.tasks import SqlTasks
from crawler_lifecycle.store.runs.wake_ups import SqlSweep, SqlWakeUps
from crawler_lifecycle.store.schedules.schedules import SqlSchedules

from .engine import Database, open_engine, parse_url
from .events import SqlEvents
from .troubles import SqlTroubles
from .webhooks import SqlWebhooks


class SqlHealth(StorePart):
    """``StoreHealth``."""

    def ping(self) -> None:
        """Raise ``StoreUnavailable`` unless the database answers and has a schema that serves this build."""
        with self._db.reading() as conn:
            wrong = schema_of(conn).problem
        if wrong is not None:
            raise StoreUnavailable(wrong)


class SqlManagerStore(SqlManagers, SqlManagerReads, SqlManagerJobs):
    """``ManagerStore``."""


class SqlGraphStore(SqlGraphs, SqlGraphReads):
    """``GraphStore``."""


@dataclass(frozen=True)
class SqlStore(Store):
    """All ports over one SQLite, MySQL or MariaDB. Safe to share between threads."""

    database: Database

    @classmethod
    def over(cls, database: Database, clock: Clock = utc_now, told: Told | None = None, most: Most = MOST) -> SqlStore:
        """The ports over this database."""
        return cls(
            initiation=SqlInitiation(database, clock, told),
            additions=SqlAdditions(database, clock, told),
            adoption=SqlAdoption(database, clock, told),
            run_numbers=SqlRunNumbers(database, clock, told),
            deployment=SqlDeployment(database, clock, told),
            looks=SqlLooks(database, clock, told),
            live_counters=SqlLiveCounters(database, clock, told),
            stops=SqlStops(database, clock, told),
            completion=SqlCompletion(database, clock, told),
            exports=SqlExports(database, clock, told),
            file_retention=SqlFileRetention(database, clock, told),
            events=SqlEvents(database, clock, told),
            runs=SqlRuns(database, clock, told),
            tasks=SqlTasks(database, clock, told),
            sweep=SqlSweep(database, clock, told),
            wake_ups=SqlWakeUps(database, clock, told),
            overdue=SqlOverdue(database, clock, told),
            corrections=SqlCorrections(database, clock, told),
            audits=SqlAudits(database, clock, told),
            findings=SqlFindings(database, clock, told),
            managers=SqlManagerStore(database, clock, told, most),
            graphs=SqlGraphStore(database, clock, told, most),
            plans=SqlPlans(database, clock, told),
            schedules=SqlSchedules(database, clock, told, most),
            webhooks=SqlWebhooks(database, clock, told, most),
            troubles=SqlTroubles(database, clock, told),
            health=SqlHealth(database, clock, told),
            database=database,
        )

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self.database.close()


def open_store(
    url: str, *, pool_size: int = 5, clock: Clock = utc_now, told: Told | None = None, most: Most = MOST
) -> SqlStore:
    """A store on the database at ``url``. Nothing is connected before the first use.

    ``told`` is called after each commit that added to the ledger, in the thread that wrote. ``most``: how many of each
    kind may be open.
    Raises ``InvalidRequest`` when ``url`` is no URL of a supported database.
    """
    return SqlStore.over(Database(open_engine(parse_url(url), pool_size=pool_size)), clock, told, most)

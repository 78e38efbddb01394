"""The store: the port ``RunStore`` over one SQL database."""

from __future__ import annotations

from crawler_lifecycle.adapters.database.migrations.schema_version import schema_of
from crawler_lifecycle.adapters.database.reads.runs import ReaderPart
from crawler_lifecycle.adapters.database.writes.additions import AdditionPart
from crawler_lifecycle.adapters.database.writes.adoption import AdoptionPart
from crawler_lifecycle.adapters.database.writes.audits import AuditPart
from crawler_lifecycle.adapters.database.writes.completion import CompletionPart
from crawler_lifecycle.adapters.database.writes.corrections import LedgerPart
from crawler_lifecycle.adapters.database.writes.deployment import DeploymentPart
from crawler_lifecycle.adapters.database.writes.file_retention import TidyPart
from crawler_lifecycle.adapters.database.writes.live_counters import CountingPart
from crawler_lifecycle.adapters.database.writes.looks import LookPart
from crawler_lifecycle.adapters.database.writes.numbers import NumbersPart
from crawler_lifecycle.adapters.database.writes.ownership import OwnershipPart
from crawler_lifecycle.adapters.database.writes.stops import StopPart
from crawler_lifecycle.adapters.database.writes.unit_of_work import Clock, Told, utc_now
from crawler_lifecycle.domain.errors import StoreUnavailable

from .engine import Database, open_engine, parse_url


class SqlRunStore(
    AdoptionPart,
    NumbersPart,
    OwnershipPart,
    AdditionPart,
    DeploymentPart,
    LookPart,
    CountingPart,
    StopPart,
    CompletionPart,
    LedgerPart,
    AuditPart,
    TidyPart,
    ReaderPart,
):
    """``RunStore`` on SQLite, MySQL or MariaDB; one part per stage of the lifecycle. Safe to share between threads."""

    def ping(self) -> None:
        """Raise ``StoreUnavailable`` unless the database answers and has a schema that serves this build."""
        with self._db.reading() as conn:
            wrong = schema_of(conn).problem
        if wrong is not None:
            raise StoreUnavailable(wrong)

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._db.close()


def open_store(url: str, *, pool_size: int = 5, clock: Clock = utc_now, told: Told | None = None) -> SqlRunStore:
    """A store on the database at ``url``. Nothing is connected before the first use.

    ``told`` is called after each commit that added to the ledger, in the thread that wrote.
    Raises ``InvalidRequest`` when ``url`` is no URL of a supported database.
    """
    return SqlRunStore(Database(open_engine(parse_url(url), pool_size=pool_size)), clock, told)

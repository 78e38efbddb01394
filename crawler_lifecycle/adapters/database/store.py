"""The store: the port ``RunStore`` over one SQL database."""

from __future__ import annotations

from crawler_lifecycle.domain.errors import StoreUnavailable

from .additions import AdditionPart
from .adoption import AdoptionPart
from .audits import AuditPart
from .completion import CompletionPart
from .counting import CountingPart
from .deployment import DeploymentPart
from .engine import Database, open_engine, parse_url
from .ledger import LedgerPart
from .looks import LookPart
from .numbers import NumbersPart
from .ownership import OwnershipPart
from .readers import ReaderPart
from .schema import schema_of
from .stops import StopPart
from .tidying import TidyPart
from .unit import Clock, Told, utc_now


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

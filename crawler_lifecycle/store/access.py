"""The access log, and the tokens that the database keeps in addition to the tokens file of each
gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    String,
    UniqueConstraint,
    func,
    insert,
    or_,
    select,
    update,
)

from crawler_lifecycle.domain.bounds import whole
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.projects import ALL
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.ports.access import AccessRow, TokenRow
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, made, seen, wanted
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.runs.tables import run_history

from .columns import (
    UtcTime,
    Words,
    counted_key,
    new_table,
    project_column,
    required,
)

access_log = new_table(
    "access_log",
    # Rows are never changed, and old rows are removed. There are no foreign keys, because a subject
    # may have no row.
    counted_key("id"),
    required("at", UtcTime),
    # The project of the subject. If the subject is unknown, this is the caller's project: ``*`` or
    # empty if the caller has no single project.
    required("project", String(63)),
    Column("caller", Words(100)),
    required("caller_project", String(63)),
    required("operation", Words(64)),
    # The label of the button that was pressed; null if there was none.
    Column("verb", Words(60)),
    Column("kind", String(20)),
    Column("subject", Words(200)),
    Column("subject_uid", String(32)),
    Column("address", Words(64)),
    # The HTTP status; null if the client disconnected before the answer, or if crawlctl used the
    # database directly.
    Column("status", Integer),
    required("outcome", Words(64)),
    # The number of identical requests that this row represents.
    required("requests", Integer),
    Index(None, "at"),
    *(Index(None, name, "at") for name in ("project", "caller", "operation", "subject", "outcome")),
)

access_token = new_table(
    "access_token",
    # The token itself is never stored. The row is kept after the revocation, and its name can be
    # used for a new token.
    counted_key("token_id"),
    required("name", String(64)),
    required("role", String(20)),
    project_column(),
    required("sha256", String(64)),
    Column("created_by", Words(255)),
    required("created_at", UtcTime),
    Column("expires_at", UtcTime),
    # The time of the last use, to the minute.
    Column("used_at", UtcTime),
    Column("revoked_at", UtcTime),
    UniqueConstraint("name"),
    UniqueConstraint("sha256"),
)

#: The maximum number of tokens that are not revoked. Each gateway reads all these tokens every two
#: seconds.
TOKENS_MAX = 1000
#: The column that identifies each kind of subject in requests.
SUBJECTS = (
    run_history.c.run_id,
    *(feature.load(feature.subject) for feature in FEATURES if feature.subject),
)
_a = access_log.c
_t = access_token.c


class AccessStore(StorePart):
    """The access log: changes by people and tokens, and refused requests."""

    def record_access(self, rows: Sequence[AccessRow]) -> None:
        """Append rows, with the uid and the project of each subject.

        A second call appends the rows again.

        Subjects of other projects are not looked up, because a row must not reveal that such
        subjects exist.
        """
        with self._db.writing() as conn:
            known = _known(conn, rows)
            conn.execute(
                insert(access_log),
                [_values(row, known.get((row.kind, row.subject))) for row in rows],
            )

    def list_access(
        self,
        limit: int = 50,
        before: tuple[datetime, int] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        **equal: str | None,
    ) -> list[AccessRow]:
        """Return rows, newest first. ``equal`` maps columns to required values.

        ``before`` is the time and id of the last row of the previous page.
        """
        indexed = any(value for name, value in equal.items() if name != "kind")
        query = select(access_log).where(
            *wanted(*((_a[name], value) for name, value in equal.items()))
        )
        query = query.where(*seen(access_log, leads=not indexed))
        query = query.where(
            *([_a.at >= since] if since else []), *([_a.at < until] if until else [])
        )
        if before is not None:
            query = query.where(_a.at <= before[0], or_(_a.at < before[0], _a.id < before[1]))
        return [
            made(AccessRow, row)
            for row in self._rows(query.order_by(_a.at.desc(), _a.id.desc()).limit(limit))
        ]


def _known(
    conn: Connection, rows: Sequence[AccessRow]
) -> Mapping[tuple[str | None, str | None], Row]:
    """Return the uid and project of each existing subject, by its kind and its number or name."""
    found: dict[tuple[str | None, str | None], Row] = {}
    for column in SUBJECTS:
        name = column.table.name.removesuffix("_history")
        kind = column.table.info.get("kind", name)
        columns = column.table.c
        names: set[Any] = {row.subject for row in rows if row.kind == kind and row.subject}
        if column.primary_key:
            names = {whole(name) for name in names} - {None}
        # A schedule has no uid.
        uid = [column.label("uid") for column in columns if column.name == f"{kind}_uid"]
        query = select(column.label("key"), columns.project, *uid)
        found |= {(kind, str(row["key"])): row for row in rows_in(conn, query, column, names)}
    return found


def _values(row: AccessRow, subject: Row | None) -> dict[str, Any]:
    values = asdict(row) | {"project": row.caller_project}
    if subject is not None and row.caller_project in (ALL, subject["project"]):
        values |= {"project": subject["project"], "subject_uid": subject.get("uid")}
    del values["id"]
    return values


class TokenStore(StorePart):
    """Tokens. The access log also has a row for the creation and revocation of each token."""

    def create_token(
        self,
        name: str,
        role: str,
        project: str,
        sha256: str,
        expires_at: datetime | None,
        by: str | None,
    ) -> TokenRow:
        """Store a new token. The name of a revoked token can be used again.

        Raises ``NotInThisState`` if the name is in use or there are too many tokens.
        """
        row = TokenRow(name, role, project, sha256, by, self._clock(), expires_at)

        def write(conn: Connection) -> TokenRow:
            found = conn.execute(
                select(_t.revoked_at).where(_t.name == name).with_for_update()
            ).one_or_none()
            if found is not None and found.revoked_at is None:
                raise NotInThisState(
                    f"name: token {name!r} already exists; revoke it first, or give another name"
                )
            if (
                conn.execute(select(func.count()).where(_t.revoked_at.is_(None))).scalar_one()
                >= TOKENS_MAX
            ):
                raise NotInThisState(
                    f"at most {TOKENS_MAX} tokens are allowed, and all are in use; revoke one of "
                    "them"
                )
            change = (
                insert(access_token)
                if found is None
                else update(access_token).where(_t.name == name)
            )
            conn.execute(change.values(**asdict(row)))
            self._tell(conn, "createToken", row, by)
            return row

        return self._db.inserting(f"token {name!r}", write)

    def list_tokens(self, *, live: bool = False) -> list[TokenRow]:
        """Return all tokens by name.

        If ``live`` is true, omit revoked tokens; expired tokens are still included.
        """
        query = (
            select(access_token)
            .where(*([_t.revoked_at.is_(None)] if live else []))
            .order_by(_t.name)
        )
        return self._made(TokenRow, query)

    def revoke_token(self, name: str, by: str | None) -> TokenRow:
        """Revoke a token.

        A second call changes nothing. Raises ``NotInThisState`` if there is no such token.
        """
        with self._db.writing() as conn:
            query = select(access_token).where(_t.name == name).with_for_update()
            found = conn.execute(query).mappings().one_or_none()
            if found is None:
                raise NotInThisState(
                    f"name: the database has no token {name!r}; crawlctl token list shows all"
                )
            row = made(TokenRow, found, revoked_at=found["revoked_at"] or self._clock())
            if found["revoked_at"] is None:
                conn.execute(
                    update(access_token).where(_t.name == name).values(revoked_at=row.revoked_at)
                )
                self._tell(conn, "revokeToken", row, by)
            return row

    def tokens_used(self, used: Mapping[str, datetime]) -> None:
        """Record the last use of tokens, by their hashes.

        A use earlier than the recorded one changes nothing.
        """
        with self._db.writing() as conn:
            for sha256, at in sorted(used.items()):
                older = or_(_t.used_at.is_(None), _t.used_at < at)
                conn.execute(
                    update(access_token).where(_t.sha256 == sha256, older).values(used_at=at)
                )

    def _tell(self, conn: Connection, operation: str, row: TokenRow, by: str | None) -> None:
        told = AccessRow(
            self._clock(), by, ALL, operation, None, None, "done", kind="token", subject=row.name
        )
        conn.execute(insert(access_log), _values(told, {"project": row.project}))

"""The newest runs of crawlers, found by steps in an index, so the cost depends on the number of
crawlers and not on the number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Subquery, func, select, text

from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.store.base.rows import seen

from .tables import run_history

_r = run_history.c
#: SQLite has no plan that skips from crawler to crawler in an index, so each row of this recursion
#: is found from the previous row.
_STEPS = """
WITH RECURSIVE step (project, crawler, run_id) AS (
    SELECT * FROM (
        SELECT project, crawler, run_id FROM run_history WHERE project BETWEEN :low AND :high
        ORDER BY project DESC, crawler DESC, run_id DESC LIMIT 1
    )
    UNION ALL
    SELECT r.project, r.crawler, r.run_id FROM step JOIN run_history AS r ON r.run_id = COALESCE(
        (
            SELECT run_id FROM run_history WHERE project = step.project AND crawler < step.crawler
            ORDER BY crawler DESC, run_id DESC LIMIT 1
        ),
        (
            SELECT run_id FROM run_history WHERE project BETWEEN :low AND :high
            AND project < step.project ORDER BY project DESC, crawler DESC, run_id DESC LIMIT 1
        )
    )
)
SELECT run_id FROM step
"""
_LAST_NAME = "\U0010ffff"


def newest_of_all(conn: Connection) -> Subquery:
    """Return a query for the id of the newest run of each crawler of each project that the caller
    may see.
    """
    if conn.dialect.name != "sqlite":
        mine = select(func.max(_r.run_id).label("run_id")).where(*seen(run_history, leads=True))
        return mine.group_by(_r.project, _r.crawler).subquery("page")
    project = only()
    steps = text(_STEPS).bindparams(low=project or "", high=project or _LAST_NAME)
    return steps.columns(_r.run_id).subquery("page")


def of_project(**values: str) -> dict[str, str]:
    """Return a group for ``newest_of_each``, limited to the project of the caller."""
    project = only()
    return values if project is None else {"project": project, **values}


def newest_of_each(groups: Sequence[Mapping[str, str]], each: int) -> Subquery:
    """Return a query for the ids of the newest ``each`` runs of each group (1 to 500 groups).

    A group contains values for the columns of an index whose last column is the id. The statement
    is built as text, because SQLAlchemy takes ten times as long to build this many queries as a
    database takes to answer them.
    """
    values: dict[str, object] = {"each": each}
    parts = list[str]()
    for number, group in enumerate(groups):
        values.update({f"{name}_{number}": value for name, value in group.items()})
        those = " AND ".join(f"{name} = :{name}_{number}" for name in group)
        page = f"FROM run_history WHERE {those} ORDER BY run_id DESC LIMIT :each"
        parts.append(f"SELECT run_id FROM (SELECT run_id {page}) AS page_{number}")  # noqa: S608
    query = text(" UNION ALL ".join(parts)).bindparams(**values)
    return query.columns(_r.run_id).subquery("page")

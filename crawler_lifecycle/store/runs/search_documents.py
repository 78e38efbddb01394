"""The words by which searches find runs. They are written together with the runs, and added later
for the runs of builds before migration 0011.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.dialects import mysql, sqlite

from crawler_lifecycle.domain.search_words import document_words
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.base.unit import StorePart

from .tables import run_history, run_word, task_history

#: The columns of ``run_history`` that are searched.
SEARCHED = ("run_id", "crawler", "flow_id", "outcome", "cause", "request")
#: The maximum number of tasks whose errors are searched, per run.
_ERRORS_MAX = 50
#: The number of runs that one transaction of ``fill`` writes.
_FILL = 500


def write_words(conn: Connection, run: Row) -> None:
    """Write the words of a run whose row is locked.

    ``run`` has the columns ``SEARCHED``.
    """
    t = task_history.c
    errors = (
        select(t.cause, t.error)
        .where(t.run_id == run["run_id"], t.superseded_by.is_(None), t.error.is_not(None))
        .limit(_ERRORS_MAX)
    )
    texts = [text for row in conn.execute(errors) for text in row if text]
    wanted = document_words(_texts(run, texts))
    w = run_word.c
    of_run = w.run_id == run["run_id"]
    present = set(conn.execute(select(w.word).where(of_run)).scalars())
    gone = present.difference(wanted)
    if gone:
        conn.execute(delete(run_word).where(of_run, w.word.in_(gone)))
    added = _rows(run, [word for word in wanted if word not in present])
    if added:
        conn.execute(insert(run_word), added)


def _rows(run: Row, words: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows for these words of a run."""
    return [{"run_id": run["run_id"], "word": word} for word in words]


def _texts(run: Row, errors: Sequence[str]) -> Iterator[str]:
    """Yield the strings of a run. Arguments come last, because only the first words are kept."""
    # After a manual edit, this may be any JSON.
    request = run["request"] if isinstance(run["request"], dict) else {}
    tags = request.get("tags")
    args = request.get("args")
    yield str(run["run_id"])
    yield run["crawler"]
    yield run["flow_id"] or ""
    yield from map(str, tags if isinstance(tags, list) else ())
    yield run["outcome"] or ""
    yield run["cause"] or ""
    yield from errors
    if isinstance(args, dict):
        for name, value in args.items():
            yield f"{name} {value}"


def first_filled(conn: Connection) -> int | None:
    """Return the lowest number of a run that can be found, if there are runs below it that cannot
    be found yet; otherwise ``None``.
    """
    first = conn.execute(select(func.min(run_history.c.run_id))).scalar_one()
    found: int | None = conn.execute(select(func.min(run_word.c.run_id))).scalar_one()
    if first is None or (found is not None and found <= first):
        return None
    newest = conn.execute(select(func.max(run_history.c.run_id))).scalar_one()
    return found or int(newest) + 1


class SearchStore(StorePart):
    """The words of runs that were written by builds before migration 0011."""

    def fill(self) -> int:
        """Write the words of the newest runs that have none, at most ``_FILL``.

        Returns the number of runs. Several processes can do this at the same time.
        """
        with self._db.reading() as conn:
            before = first_filled(conn)
            if before is None:
                return 0
            documents = _documents(conn, before)
        ignore: Any = mysql.insert(run_word).prefix_with("IGNORE")
        with self._db.writing() as conn:
            if conn.dialect.name == "sqlite":
                ignore = sqlite.insert(run_word).on_conflict_do_nothing()
            conn.execute(ignore, [row for rows in documents for row in rows])
        return len(documents)


def _documents(conn: Connection, before: int) -> list[list[dict[str, Any]]]:
    """Return the rows of ``run_word`` of the newest runs below this number, for each run."""
    r = run_history.c
    t = task_history.c
    chosen = (
        select(*(r[name] for name in SEARCHED))
        .where(r.run_id < before)
        .order_by(r.run_id.desc())
        .limit(_FILL)
    )
    runs = conn.execute(chosen).mappings().all()
    failed = (
        select(t.run_id, t.cause, t.error)
        .where(
            t.run_id.in_([run["run_id"] for run in runs]),
            t.superseded_by.is_(None),
            t.error.is_not(None),
        )
        .limit(_FILL * _ERRORS_MAX)
    )
    errors: dict[int, list[str]] = {}
    for run_id, *texts in conn.execute(failed):
        errors.setdefault(run_id, []).extend(text for text in texts if text)
    return [
        _rows(run, document_words(_texts(run, errors.get(run["run_id"], ())[: 2 * _ERRORS_MAX])))
        for run in runs
    ]

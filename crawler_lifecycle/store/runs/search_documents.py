"""The words by which searches find runs. They are written together with the runs, and added later
for the runs of builds before migration 0011.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.dialects import mysql, sqlite

from crawler_lifecycle.domain.search_words import document_words
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.base.unit import StorePart

from .tables import run_history, run_word, task_history

#: The columns of ``run_history`` that are searched.
SEARCHED = ("run_id", "crawler", "flow_id", "outcome", "cause", "request", "multi")
#: The maximum numbers of tasks per run whose errors and whose arguments are searched.
_ERRORS_MAX = 50
ARGS_MAX = 200
#: The number of runs that one transaction of ``fill`` writes.
_FILL = 100


def write_words(conn: Connection, run: Row) -> None:
    """Write the words of a run whose row is locked.

    ``run`` has the columns ``SEARCHED``.
    """
    [wanted] = _documents(conn, [run])
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


def _texts(
    run: Row, errors: Iterable[str], task_args: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the strings of a run. Arguments come last, those of tasks after those of the run,
    because only the first words are kept."""
    # After a manual edit, this may be any JSON.
    request = run["request"] if isinstance(run["request"], dict) else {}
    tags = request.get("tags")
    yield str(run["run_id"])
    yield run["crawler"]
    yield run["flow_id"] or ""
    yield from map(str, tags if isinstance(tags, list) else ())
    yield run["outcome"] or ""
    yield run["cause"] or ""
    yield from errors
    for args in (request.get("args"), *task_args):
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
            r = run_history.c
            chosen = select(*(r[name] for name in SEARCHED)).where(r.run_id < before)
            chosen = chosen.order_by(r.run_id.desc()).limit(_FILL)
            runs = conn.execute(chosen).mappings().all()
            documents = _documents(conn, runs)
        ignore: Any = mysql.insert(run_word).prefix_with("IGNORE")
        with self._db.writing() as conn:
            if conn.dialect.name == "sqlite":
                ignore = sqlite.insert(run_word).on_conflict_do_nothing()
            rows = [
                row for run, words in zip(runs, documents, strict=True) for row in _rows(run, words)
            ]
            conn.execute(ignore, rows)
        return len(runs)


def _documents(conn: Connection, runs: Sequence[Row]) -> list[list[str]]:
    """Return the words of each of these runs. A run has the columns ``SEARCHED``."""
    t = task_history.c
    failed = (
        select(t.run_id, t.cause, t.error)
        .where(
            t.run_id.in_([run["run_id"] for run in runs]),
            t.superseded_by.is_(None),
            t.error.is_not(None),
        )
        .limit(len(runs) * _ERRORS_MAX)
    )
    errors = defaultdict[int, list[str]](list)
    for run_id, *texts in conn.execute(failed):
        errors[run_id] += filter(None, texts)
    task_args = _args_by_run(conn, [run["run_id"] for run in runs if run["multi"]])
    return [
        document_words(
            _texts(run, errors[run["run_id"]][: 2 * _ERRORS_MAX], task_args[run["run_id"]])
        )
        for run in runs
    ]


def _args_by_run(
    conn: Connection, run_ids: Sequence[int]
) -> defaultdict[int, list[Mapping[str, Any]]]:
    """Return the arguments of the first tasks of these runs, by the number of the run."""
    found = defaultdict[int, list[Mapping[str, Any]]](list)
    t = task_history.c
    first = (
        select(t.run_id, t.args)
        .where(t.run_id.in_(run_ids), t.superseded_by.is_(None), t.task_index < ARGS_MAX)
        .order_by(t.run_id, t.task_index)
    )
    for run_id, args in conn.execute(first) if run_ids else ():
        found[run_id].append(args)
    return found

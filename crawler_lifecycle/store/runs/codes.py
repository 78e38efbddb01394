"""The codes of tasks and of runs (``domain.code``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, select

from crawler_lifecycle.domain.code import Code, full_prefix
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.bulk import insert_mappings, rows_in
from crawler_lifecycle.store.base.rows import Row, seen

from .tables import run_code
from .unit import Unit

#: The columns of a task's code, in the order of the fields of ``Code``.
CODE = ("code_digest", "code_version", "code_commit", "code_note")
#: The maximum number of codes that are recorded for one run, such as one that a tag of an image
#: changed under.
CODES_MAX = 20
_FIRST_OTHER = "g"  # follows every hexadecimal digit


def code_of(row: Row) -> Code | None:
    """Return the code in the row of a task or of ``run_code``; ``None`` if nothing is known."""
    code = Code(*(row[name] for name in CODE))
    return None if code == Code() else code


def code_after(task: Row, found: Code | None) -> dict[str, str | None]:
    """Return the columns of a task after a poll found this code. A known digest is never lost."""
    if found is None or (task["code_digest"] is not None and found.digest is None):
        return {name: task[name] for name in CODE}
    return dict(zip(CODE, (found.digest, found.version, found.commit, found.note), strict=True))


def record_codes(unit: Unit, before: Iterable[Row], after: Sequence[Mapping[str, Any]]) -> None:
    """Record the digests of tasks for their run, so that lists of runs can be filtered by them.

    ``after`` contains the changed columns of some of the tasks ``before``.
    """
    old = {task["task_id"]: task["code_digest"] for task in before}
    found = {
        row["code_digest"]: {name: row[name] for name in CODE}
        for row in after
        if row["code_digest"] not in (None, old[row["task_id"]])
    }
    if not found:
        return
    c = run_code.c
    known = set(unit.conn.execute(select(c.code_digest).where(c.run_id == unit.run_id)).scalars())
    room = max(CODES_MAX - len(known), 0)
    new = [row for digest, row in found.items() if digest not in known][:room]
    if new:
        project = unit.run["project"]
        insert_mappings(unit.conn, run_code, new, run_id=unit.run_id, project=project)


def record_code(unit: Unit, request: RunRequest) -> None:
    """Record the code that a request determines, so that it is kept for the run.

    A run can have used the same code in an earlier attempt.
    """
    c = run_code.c
    this = (c.run_id == unit.run_id, c.code_digest == request.code)
    if request.code is None or unit.conn.execute(select(c.run_id).where(*this)).first():
        return
    row = {"code_digest": request.code, "code_version": request.version}
    values = {"run_id": unit.run_id, "project": unit.run["project"], **row}
    unit.conn.execute(insert(run_code).values(**values))


def codes_of_runs(conn: Connection, run_ids: Iterable[int]) -> dict[int, list[Code]]:
    """Return the codes of each of these runs of the caller's project that has any, sorted by
    digest.
    """
    c = run_code.c
    query = (
        select(c.run_id, *(c[name] for name in CODE))
        .where(*seen(run_code))
        .order_by(c.run_id, c.code_digest)
    )
    found: dict[int, list[Code]] = {}
    for row in rows_in(conn, query, c.run_id, run_ids):
        found.setdefault(row["run_id"], []).append(Code(*(row[name] for name in CODE)))
    return found


def with_codes(conn: Connection, runs: Sequence[RunRow]) -> list[RunRow]:
    """Return these runs with their codes."""
    found = codes_of_runs(conn, [run.run_id for run in runs])
    return [replace(run, codes=found.get(run.run_id, ())) for run in runs]


def digest_of(conn: Connection, prefix: str | None) -> str | None:
    """Return the recorded digest with this beginning, or the beginning itself if there is none.
    ``None`` stays ``None``.

    Raises ``InvalidRequest`` if several digests have it.
    """
    if prefix is None:
        return None
    first = full_prefix(prefix)
    c = run_code.c
    of_project = seen(run_code, leads=True)
    digests: list[str] = []
    for _ in range(2):
        # Each step reads one entry of the index, even if a million runs have the same digest.
        after = c.code_digest > digests[-1] if digests else c.code_digest >= first
        below = c.code_digest < first + _FIRST_OTHER
        query = select(c.code_digest).where(after, below, *of_project)
        digest = conn.execute(query.order_by(c.code_digest).limit(1)).scalar_one_or_none()
        if digest is None:
            break
        digests.append(digest)
    if len(digests) > 1:
        raise InvalidRequest(
            f"code: {prefix!r} is the beginning of several digests, such as {digests[0]} and "
            f"{digests[1]}; give more digits"
        )
    return digests[0] if digests else first

"""The needs for versions and pools: what pruning keeps, and what refuses deletions and resumes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.features.catalogue.store.entries import documents_of, newest_document
from crawler_lifecycle.features.graphs.domain.spec import GraphState, StepKind, StepState
from crawler_lifecycle.features.graphs.store.tables import graph, graph_step
from crawler_lifecycle.features.managers.domain.manager import JobState
from crawler_lifecycle.features.managers.store.tables import manager, manager_item
from crawler_lifecycle.features.schedules.store.tables import schedule
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, seen
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_code, run_history

from ..domain.needs import NamedVersion, named_in, names_pool
from .tables import package_version

_LEFT_STEPS = [state for state in StepState if not state.final]
_LEFT_JOBS = [state for state in JobState if state not in (JobState.ENDED, JobState.SKIPPED)]


def named_versions(conn: Connection) -> Iterator[NamedVersion]:
    """Yield the versions that schedules, open managers with their jobs, and steps of open graphs
    name, of those that the caller may see.
    """
    for by, document in _documents(conn):
        yield from named_in(document, by)
    i = manager_item.c
    version = i.params["version"].as_string()
    jobs = _open_jobs(i.params["spider"].as_string(), version).where(version.is_not(None))
    for manager_id, spider, name in conn.execute(jobs):
        yield NamedVersion(name, spider, f"manager {manager_id}")
    job = graph_step.c.job
    version = job["version"].as_string()
    crawls = _open_crawls(job["crawler"].as_string(), version).where(version.is_not(None))
    for graph_id, crawler, name in conn.execute(crawls):
        yield NamedVersion(name, crawler, f"graph {graph_id}")


def who_names_pool(conn: Connection, pool: str) -> list[str]:
    """Return the schedules, open managers and open graphs that start runs in a pool later."""
    found = {by for by, document in _documents(conn) if names_pool(document, pool)}
    jobs = _open_jobs().where(manager_item.c.params["pool"].as_string() == pool)
    found.update(f"manager {manager_id}" for manager_id in conn.execute(jobs).scalars())
    crawls = _open_crawls().where(graph_step.c.job["pool"].as_string() == pool)
    found.update(f"graph {graph_id}" for graph_id in conn.execute(crawls).scalars())
    return sorted(found)


def _documents(conn: Connection) -> Iterator[tuple[str, object]]:
    """Yield the definition of each schedule, the options of each open manager, and each step of an
    open graph that starts a manager, after the words for it.
    """
    schedules = select(schedule.c.name, schedule.c.definition)
    schedules = schedules.where(schedule.c.deleted_at.is_(None), *seen(schedule))
    for name, definition in conn.execute(schedules):
        yield f"schedule {name}", definition
    m = manager.c
    open_ = (m.status.in_(LIVE_RUNS), *seen(manager))
    for manager_id, options in conn.execute(select(m.manager_id, m.options).where(*open_)):
        yield f"manager {manager_id}", options
    managers = _left_steps().where(graph_step.c.kind == StepKind.MANAGER)
    for graph_id, job in conn.execute(managers.add_columns(graph_step.c.job)):
        yield f"graph {graph_id}", job


def _open_jobs(*columns: ColumnElement[Any]) -> Select[Any]:
    """Return the query for jobs that open managers have left: the manager, and these columns."""
    i = manager_item.c
    query = select(i.manager_id, *columns).distinct().join_from(manager, manager_item)
    return query.where(manager.c.status.in_(LIVE_RUNS), i.state.in_(_LEFT_JOBS), *seen(manager))


def _open_crawls(*columns: ColumnElement[Any]) -> Select[Any]:
    """Return the query for crawl steps that open graphs have left: the graph, and these columns."""
    query = _left_steps().where(graph_step.c.kind == StepKind.CRAWL).distinct()
    return query.add_columns(*columns)


def _left_steps() -> Select[Any]:
    s = graph_step.c
    query = select(s.graph_id).join(graph, graph.c.graph_id == s.graph_id)
    return query.where(
        graph.c.state == GraphState.EXECUTING, s.state.in_(_LEFT_STEPS), *seen(graph)
    )


def who_names(conn: Connection, package: str, versions: Collection[str]) -> list[str]:
    """Return who names one of these versions of a package for runs that begin later."""
    found = [named for named in named_versions(conn) if named.version in versions]
    # A crawler that the database does not have may execute any package.
    entries = documents_of(conn, {named.crawler for named in found if named.crawler})
    others = {name for name, entry in entries.items() if entry.get("package") != package}
    return sorted({named.by for named in found if named.crawler not in others})


def executing(conn: Connection, digests: Collection[str]) -> set[str]:
    """Return those of these digests that open runs execute."""
    c = run_code.c
    joined = run_code.join(run_history, run_history.c.run_id == c.run_id)
    query = select(c.code_digest).distinct().select_from(joined)
    query = query.where(run_history.c.status.in_(LIVE_RUNS))
    return {row["code_digest"] for row in rows_in(conn, query, c.code_digest, digests)}


def known(conn: Connection, digests: Collection[str]) -> set[str]:
    """Return those of these digests whose code is kept: a version has it, or an open run executes
    it.
    """
    c = package_version.c
    rows = rows_in(conn, select(c.digest).distinct(), c.digest, digests)
    found = {row["digest"] for row in rows}
    return found | executing(conn, {*digests} - found)


def check_resume(conn: Connection, run: Row, request: Mapping[str, Any]) -> None:
    """Raise ``NotInThisState`` if the code that an ended run would execute again was deleted."""
    digest = request.get("code")
    if digest is None or known(conn, [digest]):
        return
    entry = newest_document(conn, run["crawler"], run["project"]) or {}
    of_crawler = f"the package of crawler {run['crawler']!r}"
    package = f"package {entry['package']!r}" if entry.get("package") else of_crawler
    raise NotInThisState(
        f"run {run['run_id']} executes version {request.get('version')!r} of {package}, which was "
        "deleted; deploy this version again, or resume the run with another one (crawlctl resume "
        f"{run['run_id']} --version newest)"
    )

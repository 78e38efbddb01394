"""The needs for versions: what pruning keeps, and which deletions and resumes are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, select

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

from ..domain.needs import NamedVersion, named_in
from .tables import package_version

_LEFT_STEPS = [state for state in StepState if not state.final]
_LEFT_JOBS = [state for state in JobState if state not in (JobState.ENDED, JobState.SKIPPED)]


def named_versions(conn: Connection) -> Iterator[NamedVersion]:
    """Yield the versions that schedules, open managers with their jobs, and steps of open graphs
    name, of those that the caller may see.
    """
    schedules = select(schedule.c.name, schedule.c.definition)
    schedules = schedules.where(schedule.c.deleted_at.is_(None), *seen(schedule))
    for name, definition in conn.execute(schedules):
        yield from named_in(definition, f"schedule {name}")
    m = manager.c
    open_ = (m.status.in_(LIVE_RUNS), *seen(manager))
    for manager_id, options in conn.execute(select(m.manager_id, m.options).where(*open_)):
        yield from named_in(options, f"manager {manager_id}")
    yield from _by_jobs(conn)
    yield from _by_steps(conn)


def _by_jobs(conn: Connection) -> Iterator[NamedVersion]:
    i = manager_item.c
    version = i.params["version"].as_string()
    query = (
        select(i.manager_id, i.params["spider"].as_string(), version)
        .distinct()
        .join_from(manager, manager_item)
        .where(manager.c.status.in_(LIVE_RUNS), i.state.in_(_LEFT_JOBS), *seen(manager))
    )
    for manager_id, spider, name in conn.execute(query.where(version.is_not(None))):
        yield NamedVersion(name, spider, f"manager {manager_id}")


def _by_steps(conn: Connection) -> Iterator[NamedVersion]:
    s = graph_step.c
    version = s.job["version"].as_string()
    steps = (
        select(s.graph_id)
        .join(graph, graph.c.graph_id == s.graph_id)
        .where(graph.c.state == GraphState.EXECUTING, s.state.in_(_LEFT_STEPS), *seen(graph))
    )
    crawls = steps.where(s.kind == StepKind.CRAWL, version.is_not(None)).distinct()
    crawls = crawls.add_columns(s.job["crawler"].as_string(), version)
    for graph_id, crawler, name in conn.execute(crawls):
        yield NamedVersion(name, crawler, f"graph {graph_id}")
    managers = steps.where(s.kind == StepKind.MANAGER).add_columns(s.job)
    for graph_id, job in conn.execute(managers):
        yield from named_in(job, f"graph {graph_id}")


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

"""Retention of managers: removes their jobs, and deletes a run that a manager began."""

from __future__ import annotations

from sqlalchemy import select, update

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.names import manager_subject
from crawler_lifecycle.store.retention.parts import FeatureRetention, Owner, Source, known_outcome
from crawler_lifecycle.store.runs.tables import OVER_RUNS
from crawler_lifecycle.store.runs.unit import Unit

from ..domain.manager import JobState
from .tables import manager, manager_addition, manager_item

_MANAGER = Owner(
    manager, key=manager.c.manager_id, subject=manager_subject(0)[:-1], mark="jobs_pruned_at"
)
_i = manager_item.c


def check_deletion(unit: Unit) -> None:
    """Raise ``NotInThisState`` while the manager has not handled the end of the run."""
    m = manager.c
    run_id = unit.run_id
    waits = select(_i.manager_id).join_from(manager_item, manager, m.manager_id == _i.manager_id)
    waits = waits.where(
        _i.run_id == run_id, _i.state != JobState.ENDED.value, m.status.not_in(OVER_RUNS)
    ).limit(1)
    if (manager_id := unit.conn.execute(waits).scalar_one_or_none()) is not None:
        why = f"manager {manager_id} has not handled the end of run {run_id} yet"
        raise NotInThisState(
            f"{why}; try again in a minute, or stop the manager (crawlctl manager stop "
            f"{manager_id})"
        )


def delete_texts(unit: Unit) -> None:
    """Remove strings from people and crawlers from the jobs that began the run."""
    mine = update(manager_item).where(_i.run_id == unit.run_id)
    unit.conn.execute(mine.values(params=None, error=None, outcome=known_outcome(_i.outcome)))


RETENTION = FeatureRetention(
    owners=(_MANAGER,),
    sources=(Source(manager_item, _MANAGER), Source(manager_addition, _MANAGER)),
    check_deletion=check_deletion,
    delete_texts=delete_texts,
)

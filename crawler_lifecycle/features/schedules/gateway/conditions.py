"""The conditions under which schedules need attention."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import Any

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.store.store import Store

from ..domain.decision import PAUSED_ITSELF, Decision
from ..ports import DueRow, ScheduleRow

#: The maximum number of a schedule's last firings that are read, and the number of firings skipped
#: in a row after which the schedule needs attention.
FIRINGS_MAX = 20
SKIPPED = 3


def conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Yield the schedules that paused themselves, begin nothing, or are never due again."""
    latest = store.schedules.latest_due()
    for row in store.schedules.every():
        about = partial(_condition, row)
        if row.paused_at is not None:
            if PAUSED_ITSELF in (row.pause_reason or ""):
                firings = store.schedules.list_firings(row.schedule_id, limit=FIRINGS_MAX)
                targets = (firing.target for firing in firings if firing.target is not None)
                runs = (target.id for target in targets if target.kind == "run")
                last = next(runs, None)
                yield about("paused", row.pause_reason, row.paused_at, fix="resume", run_id=last)
            continue
        if row.trouble is not None:
            yield about("unsynced", row.trouble, row.updated_at, fix="describe")
        if row.ended_at is not None and not row.definition.get("end_at"):
            cause = "it is never due again; change its due times, or delete it"
            yield about("idle", cause, row.ended_at, fix="update")
        newest = latest.get(row.schedule_id)
        # A firing that is to start its target may still fail to start it.
        if newest is not None and newest.begun_at is None:
            firings = store.schedules.list_firings(row.schedule_id, limit=FIRINGS_MAX)
            yield from _undone(row, firings)


def _undone(row: ScheduleRow, firings: list[DueRow]) -> Iterator[IncidentCondition]:
    """Yield the problems with the firings since the last firing that began a target."""
    since = list(takewhile(lambda firing: firing.begun_at is None, firings))
    kinds = {
        "missed": ([Decision.MISSED, Decision.FAILED], 1),
        "skipped": ([Decision.SKIPPED_OVERLAP], SKIPPED),
    }
    for what, (decisions, least) in kinds.items():
        found = [firing for firing in since if firing.decision in decisions]
        if len(found) >= least:
            times = tuple(firing.decided_at for firing in found)
            cause = found[0].reason or found[0].decision
            # A target that can never be started needs another definition.
            fix = "update" if found[0].decision is Decision.FAILED else "firings"
            yield _condition(
                row,
                what,
                cause,
                times[-1],
                at=times[0],
                times=times,
                count=len(times),
                fix=fix,
            )


def _condition(
    row: ScheduleRow, what: str, cause: str | None, since: datetime, *, fix: str, **more: Any
) -> IncidentCondition:
    values: dict[str, Any] = {"at": since, "fix": f"crawlctl schedule {fix} {row.name}", **more}
    subject = f"schedules/{row.name}"
    return IncidentCondition(
        f"schedule_{what}", subject, row.project, cause or what, since, **values
    )

"""Checks whether Temporal has the schedules as the database has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from crawler_lifecycle.cli.doctor.line import Line, counted
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.ports.schedules import UNTOLD
from crawler_lifecycle.store.store import Store

from .of_database import asked


def check_schedules(context: Context) -> Sequence[Line]:
    """One line, where there are schedules."""
    return asked(context, "schedules", _lines)


def _lines(store: Store) -> list[Line]:
    found = store.schedules.count_schedules(datetime.now(UTC) - UNTOLD)
    if found.untold:
        text = f"Temporal has not been told of {counted(found.untold, 'schedule')}, changed more than ten minutes ago"
        cure = "start a worker of the role audit; its /readyz (schedules) and its log say why it cannot tell"
        return [Line("schedules", "bad", text, cure)]
    if not found.active + found.paused:
        return []
    return [Line("schedules", "ok", f"{counted(found.active, 'schedule')} active, {found.paused} paused")]

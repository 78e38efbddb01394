"""Checks whether Temporal has the schedules as the database has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from crawler_lifecycle.adapters.database import read_schema
from crawler_lifecycle.cli.doctor.line import Line, counted
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.compose import build_store
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.ports.store.schedules import UNTOLD


def check_schedules(context: Context) -> Sequence[Line]:
    """One line, where there are schedules."""
    url = context.known.database.url
    try:
        if read_schema(url).problem is not None:
            return []  # told by the check of the database
        found = build_store(context.known).schedules.count_schedules(datetime.now(UTC) - UNTOLD)
    except LifecycleError as error:
        return [Line("schedules", "warn", f"schedules cannot be counted: {error}", "mend what is told above")]
    if found.untold:
        text = f"Temporal has not been told of {counted(found.untold, 'schedule')}, changed more than ten minutes ago"
        cure = "start a worker of the role audit; its /readyz (schedules) and its log say why it cannot tell"
        return [Line("schedules", "bad", text, cure)]
    if not found.active + found.paused:
        return []
    return [Line("schedules", "ok", f"{counted(found.active, 'schedule')} active, {found.paused} paused")]

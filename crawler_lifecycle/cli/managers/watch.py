"""``crawlctl manager watch``: a line for each change, until the manager has ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from crawler_lifecycle.cli.managers import tables
from crawler_lifecycle.cli.managers.control import MANAGER, ManagerId
from crawler_lifecycle.cli.output import Document, as_json
from crawler_lifecycle.cli.polling import Polling
from crawler_lifecycle.cli.runs.watch import LONGEST_PAUSE_S, lost, write_lines
from crawler_lifecycle.cli.session import Session, current
from crawler_lifecycle.cli.subjects import gave_up, is_news, look_further, show_state, verdict

if TYPE_CHECKING:
    from crawler_lifecycle.cli.gateway import Gateway


def watch(manager: ManagerId, /) -> int:
    """Watch a manager to its end; the exit code tells how it ended: 0 completed, 5 failed, 6 stopped."""
    session = current()
    with session.gateway() as gateway:
        return watch_manager(session, gateway, manager)


def watch_manager(session: Session, gateway: Gateway, manager_id: int, *, after: Document | None = None) -> int:
    """Show a manager until its end, or the end of the attempt that follows ``after``; the exit code."""
    polling = Polling(timeout_s=session.timeout_s, longest_s=LONGEST_PAUSE_S)
    told = ""
    row: Document = {}
    silence = lost(session, None)
    for row in polling.answers(lambda: gateway.poll(f"/v1/managers/{manager_id}"), silence=silence):
        line = tables.line(row)
        if line != told:
            told = line
            if session.output == "jsonl":
                print(as_json(row, indent=None))
                sys.stdout.flush()
            else:
                write_lines(session, [line])
            polling.hurry()
        code = verdict(row, "completed") if is_news(row, after) else None
        if code is not None:
            break
    else:
        raise gave_up(MANAGER, manager_id, session.timeout_s, told.partition(f"manager {manager_id} ")[2])
    if session.output in ("json", "yaml", "name"):
        return show_state(MANAGER, session, row, code)
    return look_further(MANAGER, session, manager_id, code)

"""``crawlctl manager watch``, and what watches graphs as well: a line for each change, to the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.cli.managers.control import MANAGER, ManagerId
from crawler_lifecycle.cli.output import Document, as_json
from crawler_lifecycle.cli.polling import Polling
from crawler_lifecycle.cli.runs.watch import LONGEST_PAUSE_S, lost, write_lines
from crawler_lifecycle.cli.session import Session, current
from crawler_lifecycle.cli.subjects import Kind, gave_up, is_news, look_further, show_state, verdict

if TYPE_CHECKING:
    from crawler_lifecycle.cli.gateway import Gateway


def watch(manager: ManagerId, /) -> int:
    """Watch a manager to its end; the exit code tells how it ended: 0 completed, 5 failed, 6 stopped."""
    session = current()
    with session.gateway() as gateway:
        return watch_one(MANAGER, session, gateway, manager, f"/v1/managers/{manager}")


def watch_one(
    kind: Kind, session: Session, gateway: Gateway, number: Any, path: str, *, after: Document | None = None
) -> int:
    """Show one until its end, or the end of the attempt that follows ``after``; the exit code."""
    polling = Polling(timeout_s=session.timeout_s, longest_s=LONGEST_PAUSE_S)
    told = ""
    row: Document = {}
    silence = lost(session, None)
    for row in polling.answers(lambda: gateway.poll(path), silence=silence):
        line = kind.line(row)
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
        raise gave_up(kind, number, session.timeout_s, told.partition(f"{kind.noun} {number} ")[2])
    if session.output in ("json", "yaml", "name"):
        return show_state(kind, session, row, code)
    return look_further(kind, session, number, code)

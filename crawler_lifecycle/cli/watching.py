"""Following managers and graphs to their end: as they are waited for, or with a line for each change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.cli.runs.watch import LONGEST_PAUSE_S, lost, write_lines

from .client.polling import Polling
from .output import Document, as_json
from .session import current
from .subjects import Kind, await_end, gave_up, is_news, look_further, show_state, verdict

if TYPE_CHECKING:
    from .client.gateway import Gateway


def follow(kind: Kind, gateway: Gateway, number: Any, *, watch: bool, after: Document | None = None) -> int:
    """See one that was started to its end, or to that of the attempt that follows ``after``; the exit code."""
    if watch:
        return watch_one(kind, gateway, number, after=after)
    current().say(f"{kind.noun} {number} started; Ctrl-C stops the waiting, not the {kind.noun}")
    return await_end(kind, gateway, number, after=after)


def watch_one(kind: Kind, gateway: Gateway, number: Any, *, after: Document | None = None) -> int:
    """Show one until its end, or the end of the attempt that follows ``after``; the exit code."""
    session = current()
    polling = Polling(timeout_s=session.timeout_s, longest_s=LONGEST_PAUSE_S)
    told = ""
    row: Document = {}
    silence = lost(session, None)
    for row in polling.answers(lambda: gateway.poll(kind.path(number)), silence=silence):
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
        raise gave_up(kind, number, told.partition(f"{kind.noun} {number} ")[2])
    if session.output in ("json", "yaml", "name"):
        return show_state(kind, row, code)
    return look_further(kind, number, code)

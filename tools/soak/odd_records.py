"""Compares what the service reports about requests with unusual texts with what was sent and what
executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tools.soak.api_client import Told
from tools.soak.harness import SoakHarness
from tools.soak.journal import Process
from tools.soak.odd_texts import Sent

#: The ends of crawls, managers and graphs that were not disturbed, and of those that were stopped.
GOOD = {
    "run": ("COMPLETED", "finished"),
    "manager": ("COMPLETED", "finished"),
    "graph": ("completed", None),
}
STOPPED = {
    "run": ("FAILED", "cancelled"),
    "manager": ("FAILED", "cancelled"),
    "graph": ("cancelled", None),
}
#: For each kind, the columns (state, outcome, cause, then the texts of ``TEXTS``) and their tables.
SQL = {
    "run": (
        "SELECT status, outcome, cause, flow_id, parent, request FROM run_history WHERE run_id = ?"
    ),
    "manager": (
        "SELECT status, outcome, cause, flow_id, parent, tags FROM manager WHERE manager_id = ?"
    ),
    "graph": "SELECT state, NULL, cause, graph_key, parent, tags FROM graph WHERE graph_key = ?",
}
TEXTS = {"run": ("flow_id", "parent"), "manager": ("flow_id", "parent"), "graph": ("id", "parent")}


def check_strangers(
    harness: SoakHarness, sent: Sequence[Sent], processes: Sequence[Process]
) -> Iterator[str]:
    """Return every violation, as a sentence."""
    for one in sent:
        yield from (f"{one.odd}: {text}" for text in _violations(harness, one, processes))


def _violations(harness: SoakHarness, one: Sent, processes: Sequence[Process]) -> Iterator[str]:
    for told in (one.start, one.jobs, one.stop):
        if told is not None:
            yield from _answers(told, ordinary=not one.odd.texts and told is not one.stop)
    if not one.start.ok:
        return
    kind, texts = one.odd.kind, one.odd.texts
    rows = harness.query(SQL[kind], one.number)
    if len(rows) != 1:
        yield f"it was accepted, and {len(rows)} are on record"
        return
    state, outcome, cause, first, parent, more = rows[0]
    right = {GOOD[kind]} | (
        {STOPPED[kind]} if one.stop is not None and not one.stop.refused else set()
    )
    if (state, outcome) not in right:
        yield f"it was accepted and is {state} ({outcome}), expected {sorted(right)}: {cause}"
    for field, kept in zip(TEXTS[kind], (first, parent), strict=True):
        if field in texts and texts[field] != kept:
            yield (
                f"{field} was sent as {texts[field][:40]!r} and is on record as {str(kept)[:40]!r}"
            )
    if "tag" in texts and texts["tag"] not in _tags(more):
        yield f"its tag {texts['tag'][:40]!r} is not among {_tags(more)}"
    if kind == "run":
        yield from _executed(
            one, [process for process in processes if process.run_id == one.number]
        )


def _answers(told: Told, *, ordinary: bool) -> Iterator[str]:
    if told.status is None or told.status >= 500:
        yield f"nobody said yes or no: {told}"
    elif ordinary and not told.ok:
        yield f"what is ordinary was refused: {told}"


def _tags(kept: Any) -> list[str]:
    found = json.loads(kept) if isinstance(kept, str) else kept
    return list(found.get("tags") or ()) if isinstance(found, dict) else list(found or ())


def _executed(one: Sent, crawls: Sequence[Process]) -> Iterator[str]:
    """Check that a run executed once, with the text that was sent."""
    if len(crawls) > 1:
        yield f"its run {one.number} executed {len(crawls)} times: {crawls[0]}; {crawls[1]}"
    if not crawls and one.stop is None:
        yield f"its run {one.number} never executed"
    for crawl in crawls:
        if crawl.args.get("note") != one.odd.args["note"]:
            yield (
                f"its crawler was given {crawl.args.get('note', '')[:40]!r} and not "
                f"{one.odd.args['note'][:40]!r}"
            )

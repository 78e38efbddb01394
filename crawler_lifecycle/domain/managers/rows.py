"""Conditions of a page and a decision for the rows of a manager to take them, in the database as in memory."""

from __future__ import annotations

from collections.abc import Mapping

from crawler_lifecycle.domain.errors import InvalidRequest, Overtaken

from .manager import Decision, Page, SourceItem

#: Epoch seconds that every database can hold: the end of the year 9999.
_MOMENT_MAX = 253_402_300_799


def yields_behind(page: Page, position: int) -> list[SourceItem]:
    """The yields of a page that come after this position. Raises ``InvalidRequest`` when one of them is left out."""
    items = [item for item in page.items if item.position > position]
    if [item.position for item in items] != list(range(position + 1, page.position + 1)):
        raise InvalidRequest(
            f"items: the source is at position {position}; the next page has to go on from there to its own position "
            f"{page.position}, and leave nothing out"
        )
    return items


def new_numbers(decision: Decision, next_seq: int, numbers: Mapping[int, int | None]) -> set[int]:
    """The numbers that a decision gives to new jobs: they go on from ``next_seq`` without a gap, and a job keeps its
    own. ``numbers``: those of the rows that it picks, by their ids.

    Raises ``InvalidRequest`` when the decision cannot be, ``Overtaken`` when its numbers were given meanwhile.
    """
    _check_added(decision, next_seq)
    own = {**numbers, **{one.ref: one.seq for one in decision.added}}
    picked = decision.picked
    if len({pick.item_id for pick in picked}) != len(picked) or any(pick.item_id not in own for pick in picked):
        raise InvalidRequest("item_id: a pick of nothing, or of the same job again")
    for pick in picked:
        if own[pick.item_id] not in (None, pick.seq):
            raise InvalidRequest(f"seq: {pick.seq} is not the number of job {pick.item_id}; it has {own[pick.item_id]}")
    new = [pick.seq for pick in picked if own[pick.item_id] is None]
    new += [one.seq for one in decision.added if one.seq is not None and one.retry == 0]
    if new and min(new) < next_seq:
        raise Overtaken(f"Number {min(new)} was given since the facts were read; the next cycle decides anew")
    if sorted(new) != list(range(next_seq, next_seq + len(new))):
        raise InvalidRequest(f"seq: the numbers of new jobs go on from {next_seq}, each once")
    return set(new)


def _check_added(decision: Decision, next_seq: int) -> None:
    refs = [one.ref for one in decision.added]
    if len(set(refs)) != len(refs) or any(ref >= 0 for ref in refs):
        raise InvalidRequest("ref: each added job has a negative one of its own")
    for one in decision.added:
        given = one.seq is not None and 0 < one.seq < next_seq
        if one.retry < 0 or (one.retry > 0 and not given):
            raise InvalidRequest(f"retry: {one.retry} of number {one.seq} is not allowed; no such number was given")
        if one.not_before is not None and not 0 <= one.not_before <= _MOMENT_MAX:
            raise InvalidRequest(f"not_before: {one.not_before!r} is not allowed; give seconds since 1970")

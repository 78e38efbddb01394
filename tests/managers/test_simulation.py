"""A simulation accepts the same pages and decisions as the database, and refuses the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest, Overtaken
from crawler_lifecycle.features.managers.domain.manager import (
    AddedJob,
    Decision,
    JobState,
    Page,
    PickedJob,
    SourceItem,
)
from crawler_lifecycle.managers.testing import Simulation
from tests.contracts.store.managing import NONSENSE, job, page
from tests.managers.support import generator


def _simulation(*numbers: int) -> Simulation:
    simulation = Simulation(generator())
    simulation.add_page(page(numbers))
    return simulation


def test_a_page_again_adds_nothing_and_one_with_a_gap_is_refused() -> None:
    simulation = Simulation(generator())
    items = Page([*page([1, 2]).items, SourceItem(3, None, "no dict")], 3)
    for _ in range(2):
        simulation.add_page(items)
        assert ([row.position for row in simulation.rows], simulation.record.skipped) == (
            [1, 2],
            [(3, "no dict")],
        )
    for gap in (page([7], after=4), Page(page([7], after=3).items, 5), Page([], 4)):
        with pytest.raises(InvalidRequest, match="position 3"):
            simulation.add_page(gap)
    assert (len(simulation.rows), simulation.position) == (2, 3)


@pytest.mark.parametrize("decision", NONSENSE)
def test_a_process_out_of_control_changes_nothing(decision: Decision) -> None:
    simulation = _simulation(1)
    before = simulation.row, repr(simulation.rows)
    with pytest.raises(InvalidRequest):
        simulation.commit(replace(decision, close_reason="x"))
    assert (simulation.row, repr(simulation.rows)) == before


def test_numbers_and_rows_that_another_commit_took_are_not_taken_again() -> None:
    simulation = _simulation(1, 2)
    simulation.commit(Decision(picked=[PickedJob(1, 1, job(1))]))
    for stale in (
        Decision(picked=[PickedJob(2, 1, job(2))]),
        Decision(picked=[PickedJob(1, 1, job(1))]),
        Decision(delayed=[1]),
    ):
        with pytest.raises(Overtaken):
            simulation.commit(stale)


def test_what_is_known_falls_away() -> None:
    """This includes a retry whose number already exists (S-57)."""
    simulation = _simulation(1)
    simulation.commit(Decision(picked=[PickedJob(1, 1, job(1))]))
    retry = AddedJob(-1, job(5), seq=1, retry=1)
    for _ in range(2):
        simulation.commit(Decision(added=[retry, AddedJob(-2, job(1))]))
    assert [(row.job, row.state) for row in simulation.rows[1:]] == [(job(5), JobState.QUEUED)]

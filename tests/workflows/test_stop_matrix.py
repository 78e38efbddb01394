"""The stop matrix: every cell of the table in ``stopping.md``, played with the real activities and
the real store.

One test plays some cells at once, each with its own run; differences from the table are reported
cell by cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.support import stop_table
from tests.support.covering import covering as cover
from tests.support.fakes.cluster import Behaviour
from tests.support.stop_harness import MISSED, Harness, play
from tests.support.stop_table import GROUPS, KINDS, PHASES, STATES, Cell, cells, covering
from tests.support.testbed import open_testbed

#: The effect of a stop depends on where the run is, on what is down, and on the group of its kind
#: (plain, forced, insisting). So every phase and every kind meets every state, and the kinds take
#: turns in the phases, so that each phase has at least two groups.
SAMPLE = covering()
#: The cells of `make test-more`, the others are slow: each phase and each kind, and each group in
#: each state. `make test` selects stops by their names.
FEW = cover(SAMPLE, lambda cell: {cell.phase, cell.kind, (cell.group, cell.state)})
REST = [cell for cell in cells() if cell not in SAMPLE]
#: The time limit for the cells of one test, in seconds: less than pytest's, which ends no worker.
ALL_S = 540.0


def of_phase(chosen: Sequence[Cell], phase: str) -> list[Cell]:
    return [cell for cell in chosen if cell.phase == phase]


def in_state(chosen: Sequence[Cell], state: str) -> list[Cell]:
    return [cell for cell in chosen if cell.state == state]


async def matches_the_table(
    skipping: WorkflowEnvironment, folder: Path, chosen: Sequence[Cell]
) -> None:
    async with open_testbed(skipping.client, folder, workers=False) as testbed:
        async with asyncio.timeout(ALL_S):
            problems = await play(Harness(testbed, skipping, chosen))
    # Only untrue results are reported: a missed deadline next to one excuses nothing.
    told = [problem for problem in problems if MISSED not in problem] or problems
    assert not problems, "\n".join([f"{len(problems)} differences from stopping.md:", *told])


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.troubles
async def test_every_phase_ends_as_the_table_says(
    skipping: WorkflowEnvironment, tmp_path: Path
) -> None:
    await matches_the_table(skipping, tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("state", STATES)
async def test_every_phase_in_every_state(
    skipping: WorkflowEnvironment, tmp_path: Path, state: str
) -> None:
    await matches_the_table(
        skipping, tmp_path, [cell for cell in in_state(SAMPLE, state) if cell not in FEW]
    )


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
async def test_time_is_skipped_for_the_tests_that_come_after_several_cells(
    skipping: WorkflowEnvironment, tmp_path: Path
) -> None:
    for folder in ("cells", "after"):
        (tmp_path / folder).mkdir()
    await matches_the_table(
        skipping, tmp_path / "cells", of_phase(SAMPLE, "running, single-process")[:2]
    )
    async with open_testbed(skipping.client, tmp_path / "after") as testbed, asyncio.timeout(ALL_S):
        testbed.cluster.behaviour = Behaviour(executes=7_200)
        assert (await testbed.run({"crawler": "books"})).outcome == "finished"


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("phase", PHASES)
async def test_all_other_cells_end_as_the_table_says(
    skipping: WorkflowEnvironment, tmp_path: Path, phase: str, state: str
) -> None:
    await matches_the_table(skipping, tmp_path, in_state(of_phase(REST, phase), state))


def test_every_cell_is_played_once() -> None:
    played = [cell for state in STATES for cell in in_state(SAMPLE, state)]
    played += [
        cell
        for phase, state in product(PHASES, STATES)
        for cell in in_state(of_phase(REST, phase), state)
    ]
    assert len(played) == len(set(played)) == len(PHASES) * len(KINDS) * len(STATES) == 384
    assert {(c.phase, c.kind, c.state) for c in played} == set(product(PHASES, KINDS, STATES))


def test_the_sample_meets_everything() -> None:
    assert {(c.phase, c.state) for c in SAMPLE} == set(product(PHASES, STATES))
    assert {(c.kind, c.state) for c in SAMPLE} == set(product(KINDS, STATES))
    for phase in PHASES:
        assert len({c.kind for c in of_phase(SAMPLE, phase)}) == 4
        assert len({c.group for c in of_phase(SAMPLE, phase)}) >= 2
    assert len(SAMPLE) == 48
    assert {c.phase for c in FEW} == set(PHASES)
    assert {c.kind for c in FEW} == set(KINDS)
    assert {(c.group, c.state) for c in FEW} == set(product(GROUPS, STATES))
    assert len(FEW) == 15


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("· ended |", "· never |", "'never' is not allowed"),
        (
            "| waiting for a slot or saturated | plain | any |",
            "| ended | plain | any |",
            "two lines say how 'ended'",
        ),
        (
            "\n| in completion, before the verdict | any | any |",
            "\nx",
            "no line says how 96 cells end",
        ),
        ("| force_stop | one `force_stop` | forced | 1 |", "", "the kinds are"),
    ],
)
def test_a_table_that_is_not_whole_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, words: str
) -> None:
    page = stop_table.PAGE.read_text()
    assert old in page
    changed = page.replace(old, new, 1)
    (tmp_path / "stopping.md").write_text(changed)
    monkeypatch.setattr(stop_table, "PAGE", tmp_path / "stopping.md")
    with pytest.raises(ValueError, match=words):
        stop_table._cells.__wrapped__()

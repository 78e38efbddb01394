"""The resume matrix, made from the tables in ``resuming.md``, under time skipping; every history is
replayed.

Everything that is left and each former attempt once in ``make test-more``, a sample of an eighth
and then all cells in ``make test-all``. A resume reads what a former attempt has left and cannot
know how that came to be: so the sample has each former attempt and each line of the table, and what
leaves the same meets the rest together (``resume_table.meets``).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.runner import state
from crawler_lifecycle.store.runs import initiation
from crawler_lifecycle.store.runs import unit as unit_of_work
from tests.support import resume_table
from tests.support.covering import covering
from tests.support.resume_drill import FORMER, MEANWHILE, Drill, Forward
from tests.support.resume_table import SHAPES, WAYS, Cell, cells, few, sampled
from tests.support.testbed import open_testbed

#: The minimum contents of the matrix, in the words of its table.
DEMANDED = {
    *(f"terminated {when}" for when in (
        "before the first workflow task", "after the history row",
        "during the deployment call, which never went through", "during the deployment call, which went through",
        "between deployment and the first poll", "while a task waits for a slot", "while a task executes", "in a poll",
        "under a stop", "in completion, before the verdict", "after the verdict FAILED, during the export",
        "after the verdict COMPLETED, during the export",
    )),
    "workflow failed while a task executes", "run failed", "run stopped", "run stopped by force", "run completed",
    "run completed, and rerun asked for", "run still live",
}  # fmt: skip

WHOLE = sorted(cells(), key=lambda cell: cell.id)
FEW = [cell for cell in WHOLE if cell in few()]
SAMPLE = [cell for cell in WHOLE if cell in sampled()]
#: Each previous attempt that is not among the few.
OTHERS = covering(
    [cell for cell in SAMPLE if cell.former not in {one.former for one in FEW}],
    lambda c: {c.former},
)
REST = [cell for cell in WHOLE if cell not in sampled()]
LEFT = list(dict.fromkeys(cell.left for cell in WHOLE))


async def end_as_the_table_says(
    skipping: WorkflowEnvironment,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    chosen: Sequence[Cell],
) -> None:
    """Play one cell after the other in one testbed, each with its own run."""
    clock = Forward()
    monkeypatch.setattr("tests.support.testbed.workflow_clock", clock)
    async with open_testbed(skipping.client, folder, clock=clock) as testbed:
        catalogue = testbed.scheduler.catalogue.crawlers
        # Cells end with few items or none, and the runs of all cells have one crawler.
        catalogue["books"] = replace(catalogue["books"], expect={"items": {"min": 0}})
        for number, cell in enumerate(chosen, 1):
            clock.begin_anew()
            try:
                await Drill(testbed, cell, number).play()
            except BaseException as error:
                error.add_note(f"in the cell {cell.id}")
                raise


@pytest.mark.troubles
@pytest.mark.asyncio(loop_scope="session")
async def test_what_is_left_ends_as_the_table_says(
    skipping: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end_as_the_table_says(skipping, tmp_path, monkeypatch, FEW)


@pytest.mark.troubles
@pytest.mark.asyncio(loop_scope="session")
async def test_every_other_former_attempt_ends_as_the_table_says(
    skipping: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end_as_the_table_says(skipping, tmp_path, monkeypatch, OTHERS)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_sample_ends_as_the_table_says(
    skipping: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    chosen = [
        cell for cell in SAMPLE if cell not in FEW and cell not in OTHERS and cell.shape == shape
    ]
    await end_as_the_table_says(skipping, tmp_path, monkeypatch, chosen)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("former", FORMER)
async def test_all_other_cells_end_as_the_table_says(
    skipping: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: str
) -> None:
    await end_as_the_table_says(
        skipping, tmp_path, monkeypatch, [cell for cell in REST if cell.former == former]
    )


def test_no_row_of_the_cross_product_is_missing() -> None:
    assert set(FORMER) >= DEMANDED
    whole = set(product(FORMER, MEANWHILE, SHAPES, WAYS))
    assert {(cell.former, cell.meanwhile, cell.shape, cell.way) for cell in cells()} == whole
    assert len(cells()) == len(whole), "none twice"
    assert sorted(SAMPLE + REST, key=lambda cell: cell.id) == WHOLE
    assert {cell.left for cell in SAMPLE} == set(LEFT)
    assert {cell.former for cell in REST} == set(FORMER)


def test_the_sample_meets_everything() -> None:
    assert {cell.former for cell in SAMPLE} == set(FORMER)
    assert {(cell.meanwhile, cell.shape, cell.way) for cell in SAMPLE} == set(
        product(MEANWHILE, SHAPES, WAYS)
    )
    assert {(cell.left, cell.shape) for cell in SAMPLE} == set(product(LEFT, SHAPES))
    assert {(cell.left, cell.way) for cell in SAMPLE} == set(product(LEFT, WAYS))
    assert {(cell.left, cell.meanwhile) for cell in SAMPLE} >= {
        *product(resume_table.executing(), MEANWHILE),
        *product(LEFT, ["the cluster is wiped"]),
    }
    assert len(SAMPLE) <= 40
    assert set(FEW) < set(SAMPLE)
    assert {cell.left for cell in FEW} == set(LEFT)
    assert {(cell.shape, cell.way) for cell in FEW} == set(product(SHAPES, WAYS))
    assert {cell.meanwhile for cell in FEW} == set(MEANWHILE)
    assert len(FEW) == len(LEFT)
    assert {cell.former for cell in FEW + OTHERS} == set(FORMER)


def _texts(module: ModuleType) -> str:
    """Return all texts of a module, each in one piece."""
    nodes = ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str))


def test_the_page_quotes_what_is_said() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "resuming.md").read_text().split())
    newer = "code is newer than the saved state"
    assert newer in page
    assert newer in state.NEWER_CODE
    for words in (
        "which is still open; ",
        "stop it first, or wait for its end",
        "only rerun: true executes it again",
    ):
        assert words in _texts(initiation)
    assert "refused a late write" in _texts(unit_of_work)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("| a failed run | any |", "| a failed run | it is killed |", "no line says what comes of 'a failed run'"),
    ("| a live run | any |", "| a lively run | any |", "nothing leaves a lively run"),
    ("| refused: RunIsLive |", "| perhaps |", "'perhaps' is neither an attempt nor a refusal"),
    ("FAILED / cancelled: 1, 1, 1, –", "FAILED / cancelled: 1", "attempts of 4 tasks"),
    ("| left | meanwhile |", "| left | then |", "there is no table with the columns left"),
])  # fmt: skip
def test_a_page_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, words: str
) -> None:
    page = resume_table.PAGE.read_text()
    assert old in page
    (tmp_path / "page.md").write_text(page.replace(old, new))
    monkeypatch.setattr(resume_table, "PAGE", tmp_path / "page.md")
    with pytest.raises(ValueError, match=words):
        cells.__wrapped__()

"""The tables of ``resuming.md`` in this folder as cells, so that the tests cover what the table
says.

``cells()`` is the whole cross product: each previous attempt, with everything that may happen
meanwhile, in both shapes, resumed once and twice at once. It raises ``ValueError`` with line or
cell if the page cannot be read like that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from tests.support.covering import covering

PAGE = Path(__file__).with_name("resuming.md")

#: Something that a cell plays, in words.
Met = tuple[str, ...]

SHAPES = ("single-process", "multi-process")
WAYS = ("once", "twice at once")
ANY = "any"
_FORMER = "the former attempt", "leaves"
_MEANWHILE = ("meanwhile",)
_ENDS = "left", "meanwhile", "answer", *SHAPES, "corrections"


@dataclass(frozen=True, slots=True)
class Cell:
    """One situation and its expected result."""

    former: str
    left: str
    meanwhile: str
    shape: str
    way: str
    attempt: int
    """The attempt that the resume begins; 0 when it is refused."""
    refused: str | None
    """The error's type when it is refused."""
    status: str | None
    outcome: str | None
    """How the run ends; ``None`` for a run that goes on as if nobody had asked."""
    deployed: tuple[tuple[int, ...], ...]
    """For each task the attempts under which it came to be on the cluster."""
    corrections: frozenset[str]

    @property
    def id(self) -> str:
        """Return a name for tests."""
        return "-".join(
            re.sub(r"\W+", "_", part)
            for part in (self.former, self.meanwhile, self.shape, self.way)
        )


def tables(text: str) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """Return every table of a page, by its headings."""
    found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    rows: list[tuple[str, ...]] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            rows = None
            continue
        parts = tuple(part.strip() for part in line.strip().strip("|").split("|"))
        if rows is not None:
            if not all(set(part) <= set("-:") for part in parts):
                rows.append(parts)
        elif number + 1 < len(lines) and lines[number + 1].startswith("|-"):
            rows = found.setdefault(parts, [])
    return found


def _end(text: str, tasks: int) -> tuple[str | None, str | None, tuple[tuple[int, ...], ...]]:
    """Parse ``COMPLETED / finished: 1, 1+2`` as status, outcome and attempts of each task."""
    end, colon, attempts = text.partition(": ")
    deployed = tuple(
        () if part.strip() == "–" else tuple(int(one) for one in part.strip().split("+"))
        for part in attempts.split(",")
    )
    if not colon or len(deployed) != tasks:
        raise ValueError(f"{PAGE.name}: {text!r} names no end and attempts of {tasks} tasks")
    status, slash, outcome = end.partition(" / ")
    return (status, outcome, deployed) if slash else (None, None, deployed)


@cache
def cells() -> tuple[Cell, ...]:
    """Return the whole table. Raises ``ValueError``."""
    found = tables(PAGE.read_text())
    for headings in (_FORMER, _MEANWHILE, _ENDS):
        if not found.get(headings):
            raise ValueError(
                f"{PAGE.name}: there is no table with the columns {', '.join(headings)}"
            )
    whiles = [row[0] for row in found[_MEANWHILE]]
    ends: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in found[_ENDS]:
        left, meanwhile, *rest = row
        for one in whiles if meanwhile == ANY else [meanwhile]:
            if one not in whiles or (left, one) in ends:
                raise ValueError(
                    f"{PAGE.name}: {left!r}, {meanwhile!r} stands there twice, or for nothing that happens"
                )
            ends[left, one] = tuple(rest)
    unused = {left for left, _ in ends} - {left for _, left in found[_FORMER]}
    if unused:
        raise ValueError(f"{PAGE.name}: nothing leaves {', '.join(sorted(unused))}")
    return tuple(
        _cell(former, left, meanwhile, shape, way, ends.get((left, meanwhile)))
        for (former, left), meanwhile, shape, way in product(found[_FORMER], whiles, SHAPES, WAYS)
    )


def _cell(
    former: str, left: str, meanwhile: str, shape: str, way: str, end: tuple[str, ...] | None
) -> Cell:
    if end is None:
        raise ValueError(f"{PAGE.name}: no line says what comes of {left!r} when {meanwhile}")
    answer, single, multi, corrections = end
    match = re.fullmatch(r"attempt (\d+)|refused: (\w+)", answer)
    if match is None:
        raise ValueError(f"{PAGE.name}: {answer!r} is neither an attempt nor a refusal")
    status, outcome, deployed = _end(single, 1) if shape == SHAPES[0] else _end(multi, 4)
    return Cell(
        former,
        left,
        meanwhile,
        shape,
        way,
        int(match[1] or 0),
        match[2],
        status,
        outcome,
        deployed,
        _kinds(corrections, shape),
    )


def _kinds(text: str, shape: str) -> frozenset[str]:
    """Parse ``killed``, ``none``, or ``killed; multi-process: vanished``."""
    usual, _, multi = text.partition("; multi-process: ")
    chosen = multi if multi and shape == SHAPES[1] else usual
    return frozenset() if chosen == "none" else frozenset(chosen.split(", "))


@cache
def sampled() -> frozenset[Cell]:
    """Return a set of cells that together cover everything a cell ``meets``; always the same."""
    return frozenset(covering(sorted(cells(), key=lambda cell: cell.id), meets))


@cache
def few() -> frozenset[Cell]:
    """Return the few cells with everything that is left, each event meanwhile, and each shape in
    each way.
    """
    few = covering(
        sorted(sampled(), key=lambda cell: cell.id),
        lambda cell: {("left", cell.left), ("meanwhile", cell.meanwhile), (cell.shape, cell.way)},
    )
    return frozenset(few)


def meets(cell: Cell) -> frozenset[Met]:
    """Return what another cell may cover in its place.

    A resume reads what is left and not how it arose, so previous attempts that leave the same share
    the events meanwhile. If nothing of them is executing, only a wiped cluster differs from none.
    """
    met: set[Met] = {
        ("former", cell.former),
        ("left", cell.left, cell.shape),
        ("left", cell.left, cell.way),
        ("meanwhile", cell.meanwhile, cell.shape, cell.way),
    }
    if cell.left in executing():
        met |= {("line", cell.left, cell.meanwhile), ("former", cell.former, cell.shape)}
    if cell.meanwhile == "the cluster is wiped":
        met.add(("line", cell.left, cell.meanwhile))
    return frozenset(met)


@cache
def executing() -> frozenset[str]:
    """Return what is left where the table has a line for each event meanwhile."""
    return frozenset(
        left for left, meanwhile, *_ in tables(PAGE.read_text())[_ENDS] if meanwhile != ANY
    )

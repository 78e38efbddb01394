"""The table of expected ends in ``stopping.md`` in this folder as cells, so that the tests cover
what the table says.

``cells()`` is the whole cross product of phases, kinds and states; ``covering()`` is the sample for
the testbed, and ``pairwise(n)`` one with as many different pairs of values as ``n`` cells can have.
They raise ``ValueError`` with line or cell if the page cannot be read like that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path

PAGE = Path(__file__).with_name("stopping.md")

PHASES = (
    "before the first workflow task",
    "after the history row",
    "during the deployment call",
    "between deployment and the first poll",
    "waiting for a slot or saturated",
    "running, single-process",
    "running, multi-process with queued children",
    "while children are being added",
    "in a poll",
    "in completion, before the verdict",
    "after the verdict, during the export",
    "ended",
)
KINDS = (
    "stop",
    "stop twice",
    "Temporal cancel",
    "100 stops at once",
    "stop through the gateway while no worker is up",
    "force_stop",
    "force_stop, then stop",
    "stop, then force_stop",
)
STATES = ("all well", "database down", "cluster answering errors", "scheduler service down")
GROUPS = ("plain", "forced", "insisting")

_ENDS = "when it comes", "kind", "meanwhile"
_KINDS = "kind", "what is sent", "group"


@dataclass(frozen=True, slots=True)
class Cell:
    """One situation and its expected result."""

    phase: str
    kind: str
    state: str
    status: str
    """The run's status in the end, COMPLETED or FAILED."""
    outcome: str
    tasks: tuple[tuple[str, int], ...]
    """The tasks that count, by status."""
    on_cluster: int
    """Tasks that ever came to be on the cluster."""
    signals: int
    """Tasks whose crawler got the stop signal, none of them twice."""
    killed: int
    """Tasks that were deleted by force."""
    log_rows: int
    """Rows of ``cancellation_log``."""
    stopped_events: int
    """Events ``run.stopped``."""
    export_status: str
    """The status that the one export signal carries."""
    group: str
    """``plain``, ``forced``, or ``insisting`` (first plain, then forced)."""

    @property
    def id(self) -> str:
        """Return a name for tests, files and workflows."""
        return "-".join(
            re.sub(r"\W+", "_", part).strip("_") for part in (self.phase, self.kind, self.state)
        )

    @property
    def gateway(self) -> bool:
        """Return whether the stop comes through the gateway, while no worker is running."""
        return "gateway" in self.kind

    @property
    def late(self) -> bool:
        """Return whether the run had its verdict before the stop."""
        return self.phase in PHASES[-2:]

    @property
    def refused(self) -> bool:
        """Return whether the gateway must not acknowledge the stop, because it cannot record it."""
        return self.gateway and self.state == "database down"


def cells() -> list[Cell]:
    """Return every cell of the cross product, in the order of phases, kinds and states; exactly one
    line covers each.
    """
    return list(_cells())


def covering() -> list[Cell]:
    """Return one cell for each phase in each state: every kind meets every state, and every phase
    four of the kinds.
    """
    turns = {cell: PHASES.index(cell.phase) + 3 * STATES.index(cell.state) for cell in cells()}
    return [cell for cell, turn in turns.items() if KINDS.index(cell.kind) == turn % len(KINDS)]


def pairwise(n: int = 56, seed: int = 1) -> list[Cell]:
    """Return ``n`` cells with as many different pairs of (phase, kind), (phase, state) and (kind,
    state) as possible.

    There are 96 pairs of phase and kind alone, so all pairs need ``n >= 96``; ``n >= 56`` has every
    pair with a state. The same ``seed`` gives the same cells, in the order of ``cells()``.
    """
    every = cells()
    random.Random(seed).shuffle(every)
    left = {cell: _pairs(cell) for cell in every}
    wanted = {pair for pairs in left.values() for pair in pairs}
    chosen: list[Cell] = []
    while len(chosen) < n and left:
        best = max(left, key=lambda cell: _gain(cell, left[cell], wanted))
        chosen.append(best)
        wanted.difference_update(left.pop(best))
    return sorted(
        chosen, key=lambda c: (PHASES.index(c.phase), KINDS.index(c.kind), STATES.index(c.state))
    )


def _pairs(cell: Cell) -> list[tuple[str, str]]:
    return list(combinations((cell.phase, cell.kind, cell.state), 2))


def _gain(cell: Cell, pairs: list[tuple[str, str]], wanted: set[tuple[str, str]]) -> int:
    """Return the new pairs of a cell; those with a state are fewer and come first."""
    return sum((2 if cell.state in pair else 1) for pair in pairs if pair in wanted)


@cache
def _cells() -> tuple[Cell, ...]:
    groups, logged = _read_kinds()
    lines = list(_rows(PAGE.read_text(), _ENDS))
    found: dict[tuple[str, str, str], Cell] = {}
    for line in lines:
        phases = _spread(line[0], PHASES, {})
        kinds = _spread(line[1], KINDS, {g: [k for k in KINDS if groups[k] == g] for g in GROUPS})
        for phase, kind, state in product(phases, kinds, _spread(line[2], STATES, {})):
            if (phase, kind, state) in found:
                raise ValueError(
                    f"{PAGE.name}: two lines say how {phase!r}, {kind!r}, {state!r} ends"
                )
            found[phase, kind, state] = _cell(
                phase, kind, state, line[3:], groups[kind], logged[kind]
            )
    missing = [key for key in product(PHASES, KINDS, STATES) if key not in found]
    if missing:
        raise ValueError(
            f"{PAGE.name}: no line says how {len(missing)} cells end, first {missing[0]}"
        )
    return tuple(found[key] for key in product(PHASES, KINDS, STATES))


def _cell(phase: str, kind: str, state: str, ends: Sequence[str], group: str, logged: int) -> Cell:
    run, tasks, on_cluster, signals, killed, in_log, stopped, export = ends
    status, outcome = (part.strip() for part in run.split("/"))
    by_status = tuple(
        (name, int(count)) for count, name in (part.split() for part in tasks.split(","))
    )
    if in_log not in ("yes", "no"):
        raise ValueError(f"{PAGE.name}: logged: {in_log!r} is not allowed; write yes or no")
    return Cell(
        phase=phase,
        kind=kind,
        state=state,
        status=status,
        outcome=outcome,
        tasks=by_status,
        on_cluster=int(on_cluster),
        signals=int(signals),
        killed=int(killed),
        log_rows=logged if in_log == "yes" else 0,
        stopped_events=int(stopped),
        export_status=export,
        group=group,
    )


def _read_kinds() -> tuple[dict[str, str], dict[str, int]]:
    lines = list(_rows(PAGE.read_text(), _KINDS))
    groups, logged = {line[0]: line[2] for line in lines}, {line[0]: int(line[3]) for line in lines}
    if set(groups) != set(KINDS) or not set(groups.values()) <= set(GROUPS):
        raise ValueError(
            f"{PAGE.name}: the kinds are {groups}, and should be {KINDS} in groups {GROUPS}"
        )
    return groups, logged


def _spread(text: str, values: Sequence[str], groups: dict[str, list[str]]) -> list[str]:
    """Return the values for which a field of the table stands: some by name or group, or ``any``."""
    if text == "any":
        return list(values)
    spread: list[str] = []
    for part in (part.strip() for part in text.split("·")):
        if part not in values and part not in groups:
            raise ValueError(
                f"{PAGE.name}: {part!r} is not allowed; give one of {[*values, *groups]}, or any"
            )
        spread += groups.get(part) or [part]
    return spread


def _rows(page: str, header: tuple[str, ...]) -> Iterator[list[str]]:
    """Return the rows of the table whose header begins like this, as fields."""
    inside = False
    for text in page.splitlines():
        fields = (
            [field.strip() for field in text.strip().strip("|").split("|")]
            if text.startswith("|")
            else []
        )
        if not fields:
            inside = False
        elif inside and set(fields[0]) != {"-"}:
            yield fields
        elif tuple(fields[: len(header)]) == header:
            inside = True

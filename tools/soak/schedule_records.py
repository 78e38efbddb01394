"""Compares what the service reports about due times with what was requested and what executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.e2e.harness import moment
from tools.soak.api_client import Told
from tools.soak.harness import SoakHarness
from tools.soak.journal import Process, clock
from tools.soak.schedules import EVERY_S, Wanted

#: A definition counts from the moment of its transaction, of which a client only knows that it is
#: within the client's request.
EDGE_S = 1.0
#: Decisions after which something has begun, when everything has ended.
BEGINS = ("started", "queued")


@dataclass(frozen=True)
class Line:
    """One row of ``schedule_due``."""

    name: str
    due_at: float
    decision: str
    reason: str | None
    kind: str
    target: int | None

    def __str__(self) -> str:
        target = "nothing" if self.target is None else f"{self.kind} {self.target}"
        return (
            f"{self.name}, due {clock(self.due_at)}, {self.decision} ({self.reason}), began "
            f"{target}"
        )


def read_lines(harness: SoakHarness) -> list[Line]:
    rows = harness.query(
        "SELECT s.name, d.due_at, d.decision, d.reason, d.target_kind, d.target_id "
        "FROM schedule_due d JOIN schedule s ON s.schedule_id = d.schedule_id ORDER BY d.due_id"
    )
    return [Line(name, moment(due_at).timestamp(), *rest) for name, due_at, *rest in rows]


def check_schedules(
    harness: SoakHarness,
    lives: Sequence[tuple[str, float, float]],
    wanted: Sequence[Wanted],
    told: Sequence[Told],
    processes: Sequence[Process],
) -> Iterator[str]:
    """Return every violation, as a sentence, after all schedules were deleted and everything has
    ended.
    """
    lines = read_lines(harness)
    by_time = Counter((line.name, line.due_at) for line in lines)
    yield from (
        f"{name} has {times} lines for {clock(at)}"
        for (name, at), times in by_time.items()
        if times > 1
    )
    yield from _decided(lines)
    yield from _complete(by_time, lives)
    yield from _asked(lines, wanted)
    yield from _once(harness, lines, processes)
    for one in told:
        if one.status is None or one.status >= 500:
            yield f"nobody said yes or no: {one}"


def _decided(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        # A firing that was queued keeps this decision. After it has begun, it has a target.
        if (line.decision in BEGINS) != (line.target is not None):
            yield f"its decision does not say what it began: {line}"


def _complete(
    by_time: Mapping[tuple[str, float], int], lives: Sequence[tuple[str, float, float]]
) -> Iterator[str]:
    """Check that each due time of a schedule has a line, whatever was down."""
    for name, since, until in lives:
        at = (since + EDGE_S) // EVERY_S * EVERY_S + EVERY_S
        while at < until - EDGE_S:
            if not by_time.get((name, at)):
                yield (
                    f"{name} was there from {clock(since)} to {clock(until)}, and {clock(at)} "
                    "has no line"
                )
            at += EVERY_S


def _asked(lines: Sequence[Line], wanted: Sequence[Wanted]) -> Iterator[str]:
    """Check that requested firings begin, even if the schedule is paused or deleted in the
    meantime.
    """
    known = {(line.name, line.due_at): line for line in lines}
    for one in wanted:
        line = known.get((one.name, one.due_at))
        if line is None or line.target is None:
            yield (
                f"a person was promised {one.name} at {clock(one.due_at)}, and it is: {line}; "
                f"{one.told}"
            )


def _once(
    harness: SoakHarness, lines: Sequence[Line], processes: Sequence[Process]
) -> Iterator[str]:
    """Check that nothing was begun twice or without a line, and that none of its tasks executed
    twice.
    """
    of = Counter((line.kind, line.target) for line in lines if line.target is not None)
    yield from (
        f"{times} due times began the {kind} {target}"
        for (kind, target), times in of.items()
        if times > 1
    )
    runs = harness.query(
        "SELECT run_id, request_id FROM run_history WHERE request_id LIKE ?", "schedule/%"
    )
    begun = [("run", *one) for one in runs]
    begun += [
        ("manager", *one)
        for one in harness.query("SELECT manager_id, flow_id FROM manager WHERE name = 'aside'")
    ]
    graphs = harness.query(
        "SELECT graph_id, graph_key FROM graph WHERE graph_key LIKE ?", "schedule.%"
    )
    begun += [("graph", *one) for one in graphs]
    for (kind, whose), times in Counter((kind, whose) for kind, _, whose in begun).items():
        if times > 1:
            yield f"{times} of the kind {kind} were begun for {whose}"
    for kind, number, whose in begun:
        if not of[(kind, number)]:
            yield f"{kind} {number} was begun for {whose}, and no line says so"
    mine = {run_id for run_id, _ in runs}
    for name, times in Counter(one.name for one in processes if one.run_id in mine).items():
        if times > 1:
            yield f"the task {name} of a due time was executed {times} times"

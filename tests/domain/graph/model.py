"""Graphs by brute force: after each event, everything is derived again from the states of the
steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState

RANK = (StepState.COMPLETED, StepState.CANCELLED, StepState.DISCARDED)
WAITS = (StepState.SUSPENDED, StepState.SCHEDULED, StepState.AVAILABLE, StepState.RETRYABLE)
S = StepState


@dataclass
class Node:
    """One step: its definition, and the little that is remembered about it."""

    spec: StepSpec
    path: str
    state: StepState = S.SUSPENDED
    outcome: str | None = None
    ending: bool = False
    timed: bool = False
    """Whether it has a time of its own to wait for."""

    @property
    def level(self) -> str:
        return self.path.rpartition("/")[0]


class Model:
    """The rules of section 2.1 of the design, each written once, in the simplest way."""

    def __init__(self, fail_fast: bool) -> None:
        self.nodes: dict[str, Node] = {}
        self.fail_fast = fail_fast

    # --- what is true, asked anew ---

    def inside(self, path: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.path.startswith(path + "/")]

    def in_it(self, path: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.level == path]

    def holds(self, node: Node) -> bool:
        return node.spec.kind is StepKind.GRAPH and bool(self.in_it(node.path))

    def units(self) -> list[Node]:
        return [node for node in self.nodes.values() if not self.holds(node)]

    def end(self, path: str) -> StepState | None:
        node = self.nodes[path]
        ends = [self.end(child.path) for child in self.in_it(path)]
        if not self.holds(node):
            ends.append(node.state if node.state.final else None)
        if None in ends:
            return None
        return max((end for end in ends if end), key=RANK.index)

    def calm(self, path: str) -> bool:
        return not any(node.ending for node in (self.nodes[path], *self.inside(path)))

    def accepts(self, node: Node, end: StepState | None) -> bool:
        ignored = {S.CANCELLED: node.spec.ignore_cancelled, S.DISCARDED: node.spec.ignore_discarded}
        return end is S.COMPLETED or (end is not None and ignored.get(end, False))

    def deps(self, node: Node) -> list[str]:
        level = node.level + "/" if node.level else ""
        return [level + name for name in node.spec.deps]

    def gate(self, path: str) -> str:
        node = self.nodes[path]
        above = "open"
        if node.level and not self.nodes[node.level].spec.graft:
            above = self.gate(node.level)
        ends = [self.end(dep) if dep in self.nodes else None for dep in self.deps(node)]
        if above == "doomed" or any(end and not self.accepts(node, end) for end in ends):
            return "doomed"
        free = all(
            self.accepts(node, end) and self.calm(dep)
            for dep, end in zip(self.deps(node), ends, strict=True)
        )
        return above if free else "shut"

    def shown(self, path: str) -> StepState:
        """Return the state that its row must have."""
        node = self.nodes[path]
        if not self.holds(node):
            return node.state
        inner = [self.end(child.path) for child in self.in_it(path)]
        if None in inner:
            return S.EXECUTING if self.gate(path) == "open" else S.SUSPENDED
        return max((end for end in inner if end), key=RANK.index)

    @property
    def state(self) -> str:
        units = self.units()
        if any(node.ending or not node.state.final for node in units):
            return "executing"
        return max((node.state for node in units), key=RANK.index, default=S.COMPLETED).value

    # --- what follows from it ---

    def settle(self) -> None:
        while any(self._follow(node) for node in self.units() if node.state in WAITS):
            pass
        for node in self.units():
            if (
                node.state in WAITS
                and node.state is not S.SUSPENDED
                and self.gate(node.path) == "shut"
            ):
                node.state, node.outcome = S.SUSPENDED, None

    def _follow(self, node: Node) -> bool:
        gate = self.gate(node.path)
        failing = self.fail_fast and any(
            n.state is S.DISCARDED for n in self.nodes.values() if not self.holds(n)
        )
        before, outcome = node.state, node.outcome
        node.outcome = None
        if gate == "doomed":
            node.state, node.outcome = S.CANCELLED, "upstream"
        elif failing:
            node.state, node.outcome = S.CANCELLED, "fail_fast"
        elif gate == "shut":
            pass  # an empty graph may still open it
        elif node.state is S.SUSPENDED and node.spec.kind is StepKind.GRAPH:
            node.state = S.COMPLETED
        elif node.state is S.SUSPENDED:
            node.state = S.SCHEDULED if node.timed else S.AVAILABLE
        if node.state is before:
            node.outcome = outcome
        return node.state is not before

    # --- what happens ---

    def add(self, specs: Iterable[StepSpec], below: str = "") -> None:
        for spec in specs:
            path = f"{below}/{spec.path}" if below else spec.path
            self.nodes[path] = Node(spec, path, timed=spec.not_before is not None)
        self.settle()

    def cancel(self, paths: Collection[str] | None) -> int:
        count = 0
        for node in self.units():
            mine = paths is None or any(f"{node.path}/".startswith(f"{path}/") for path in paths)
            if mine and not node.state.final:
                node.ending = node.state is S.EXECUTING and node.spec.kind is not StepKind.APPROVAL
                node.state, node.outcome = S.CANCELLED, "cancelled"
                count += node.spec.kind is not StepKind.GRAPH
        self.settle()
        return count

    def chosen(self, paths: Collection[str] | None) -> list[Node]:
        """Return the steps that a retry selects by default."""
        found = []
        for node in self.units():
            named = paths is not None and node.path in paths and not self.in_it(node.path)
            mine = paths is None or any(f"{node.path}/".startswith(f"{path}/") for path in paths)
            failed = node.state in (S.DISCARDED, S.CANCELLED, S.RETRYABLE)
            if mine and (failed or (named and node.state in (S.COMPLETED, S.SCHEDULED))):
                found.append(node)
        return found

    def refused(self, chosen: Collection[Node]) -> bool:
        """Return whether a retry of these steps is refused, because they may still execute or would
        be cancelled again at once.
        """
        if any(node.ending for node in chosen):
            return True
        left = [n for n in self.units() if n.state is S.DISCARDED and n not in chosen]
        if self.fail_fast and left and chosen:
            return True
        for node in chosen:
            held: Node | None = node
            while held is not None:
                for dep in self.deps(held):
                    again = any(f"{one.path}/".startswith(f"{dep}/") for one in chosen)
                    if (
                        dep in self.nodes
                        and self.end(dep)
                        and not self.accepts(held, self.end(dep))
                        and not again
                    ):
                        return True
                above = self.nodes.get(held.level)
                held = None if above is None or above.spec.graft else above
        return False

    def cascaded(self, chosen: list[Node]) -> list[Node]:
        """Return these steps with the steps that were cancelled because of them."""
        found = list(chosen)
        if self.fail_fast and any(node.state is S.DISCARDED for node in chosen):
            found += [
                node for node in self.units() if node.outcome == "fail_fast" and node not in found
            ]
        while True:
            more = [
                node
                for node in self.units()
                if node not in found and node.state is S.CANCELLED and node.outcome == "upstream"
                if any(self._waits_for(node, one) for one in found)
            ]
            if not more:
                return found
            found += more

    def _waits_for(self, node: Node, other: Node) -> bool:
        """Return whether this step, or a graph that contains it, depends on the other, or on a
        graph inside the other.
        """
        over = [other.path.rsplit("/", n)[0] for n in range(other.path.count("/") + 1)]
        mine = [node.path.rsplit("/", n)[0] for n in range(node.path.count("/") + 1)]
        return any(dep in over for path in mine for dep in self.deps(self.nodes[path]))

    def retry(self, nodes: Iterable[Node]) -> int:
        count = 0
        for node in list(nodes):
            node.state, node.outcome, node.timed = S.SUSPENDED, None, False
            count += node.spec.kind is not StepKind.GRAPH
        self.settle()
        return count

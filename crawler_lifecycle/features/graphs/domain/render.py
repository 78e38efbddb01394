"""Renders graphs as text for Graphviz and Mermaid, and as nodes and edges for the web UI.

Equal steps give equal text. Steps are drawn in the order in which they were added. A sub-graph with
many steps is one box with the number of steps. Names are escaped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from .kinds import CONTAINING, STEP_RULES
from .spec import StepKind, StepState

#: A sub-graph with more direct steps than ``FOLD_ABOVE`` is one box. The other two numbers are the
#: maximum numbers of nodes and edges in a picture.
FOLD_ABOVE = 50
NODES_MAX = 20_000
EDGES_MAX = 200_000
#: A fan-out is a set of steps with the same work, the same dependencies and the same dependents.
#: A fan-out with more steps than this is one node, if its graph has more than ``FOLD_ABOVE`` nodes.
FAN_ABOVE = 10

_COLOURS: Mapping[str, str] = {
    StepState.EXECUTING: "yellow",
    StepState.RETRYABLE: "orange",
    StepState.COMPLETED: "lightgreen",
    StepState.CANCELLED: "lightgray",
    StepState.DISCARDED: "lightpink",
}
_ELSE = "lightblue"


class NamedStep(Protocol):
    """The fields that a ``StepSpec`` and a row of a step share."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> StepKind | str: ...
    @property
    def job(self) -> Mapping[str, Any]: ...


class DrawnStep(NamedStep, Protocol):
    """The fields of a step that are needed to draw it."""

    @property
    def deps(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a picture."""

    path: str
    name: str
    kind: str
    label: str
    """The name of the step's worker, function, crawler or manager; empty for a graph."""
    state: str | None
    parent: str | None
    """The graph inside which the node is drawn."""
    steps: int | None = None
    """The number of steps in a box, or ``None`` if the node is not a box. A box of a fan-out has
    the kind and the path of its first step. If ``expand`` contains this path, the steps of the
    fan-out are drawn one by one.
    """
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of these steps in each state."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges of a graph, without a layout. An edge is a pair of paths, from and to."""

    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]
    left_out: int = 0
    """The number of nodes beyond ``NODES_MAX``, which are left out."""
    edges_left_out: int = 0
    """The number of edges beyond ``EDGES_MAX``, which are left out."""


def label(step: DrawnStep) -> str:
    """Return the name of a step's worker, function, crawler or manager. The name is empty for a
    graph and for a kind that this version does not know.
    """
    return STEP_RULES[StepKind(step.kind)].label(step.job) if step.kind in STEP_RULES else ""


def picture(
    steps: Sequence[DrawnStep],
    states: Mapping[str, str] | None = None,
    *,
    expand: bool | Collection[str] = False,
) -> Picture:
    """Return the nodes and edges of a graph.

    ``expand`` is true to draw all steps of all sub-graphs and fan-outs, or a list of the paths to
    expand.
    """
    tree = _Tree(steps, states or {}, expand)
    drawn, all_edges = (
        (tree.nodes, tree.edges) if expand is True else _without_fans(tree, expand or ())
    )
    nodes = drawn[:NODES_MAX]
    there = {node.path for node in nodes}
    edges = [(a, b) for a, b in all_edges if a in there and b in there]
    return Picture(
        nodes, edges[:EDGES_MAX], len(drawn) - len(nodes), max(0, len(edges) - EDGES_MAX)
    )


def to_dot(
    steps: Sequence[DrawnStep],
    name: str | None = None,
    states: Mapping[str, str] | None = None,
    *,
    expand: bool | Collection[str] = False,
) -> str:
    """Return a graph as text for Graphviz. ``states`` maps paths to the states that are shown."""
    tree = _Tree(steps, states or {}, expand)
    lines = [f"digraph {_quoted(name)} {{" if name else "digraph {"]
    lines.append("  rankdir=TB;")
    if any(node.path in tree.inner for node in tree.nodes):
        lines.append("  compound=true;")
    lines.append('  node [shape=box, style="rounded,filled", fillcolor=white];')
    lines += _dot_level(tree, None, "  ")
    for source, other in tree.edges:
        ends = [
            f"{what}={_quoted('cluster_' + path)}"
            for what, path in (("ltail", source), ("lhead", other))
        ]
        shown = [end for end, path in zip(ends, (source, other), strict=True) if path in tree.inner]
        attributes = f" [{', '.join(shown)}]" if shown else ""
        lines.append(f"  {_quoted(source)} -> {_quoted(other)}{attributes};")
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(
    steps: Sequence[DrawnStep],
    states: Mapping[str, str] | None = None,
    *,
    expand: bool | Collection[str] = False,
) -> str:
    """Return a graph as a Mermaid flowchart."""
    tree = _Tree(steps, states or {}, expand)
    ids = _mermaid_ids(tree.nodes)
    lines = ["flowchart TD", *_mermaid_level(tree, ids, None, "  ")]
    lines += [f"  {ids[source]} --> {ids[other]}" for source, other in tree.edges]
    for state in StepState:
        members = [
            ids[node.path]
            for node in tree.nodes
            if node.state == state and node.path not in tree.inner
        ]
        if members:
            lines.append(f"  classDef {state.value} fill:{_COLOURS.get(state, _ELSE)}")
            lines.append(f"  class {','.join(members)} {state.value}")
    return "\n".join(lines) + "\n"


class _Tree:
    """The nodes and edges of a drawing, in order. A sub-graph with too many steps is replaced by a
    box.
    """

    def __init__(
        self, steps: Sequence[DrawnStep], states: Mapping[str, str], expand: bool | Collection[str]
    ) -> None:
        self.nodes: list[Node] = []
        self.edges: list[tuple[str, str]] = []
        self.inner: dict[str | None, list[Node]] = {}
        """The nodes that are drawn in each sub-graph, by its path; the key ``None`` stands for the
        whole graph.
        """
        self._folded = self._which_fold(steps, expand)
        drawn = [
            step
            for step in steps
            if not any(parent in self._folded for parent in _above(step.path))
        ]
        counts = self._counts(steps, states)
        for step in drawn:
            state = states.get(step.path)
            self._add(step.path, str(step.kind), label(step), state, counts.get(step.path))
        there = {step.path for step in drawn}
        for step in drawn:
            level = step.path.rpartition("/")[0]
            for dep in step.deps:
                path = f"{level}/{dep}" if level else dep
                if path not in there:
                    there.add(path)
                    self._add(path, "missing", "not there yet", None, None)
                self.edges.append((path, step.path))

    def _add(
        self, path: str, kind: str, label: str, state: str | None, counts: Counter[str] | None
    ) -> None:
        above, _, name = path.rpartition("/")
        node = Node(path, name, kind, label, str(state) if state else None, above or None)
        if counts is not None:
            by_state = {
                state.value: counts[state.value] for state in StepState if counts[state.value]
            }
            node = Node(path, name, kind, label, node.state, node.parent, counts.total(), by_state)
        self.nodes.append(node)
        self.inner.setdefault(node.parent, []).append(node)

    @staticmethod
    def _which_fold(steps: Iterable[DrawnStep], expand: bool | Collection[str]) -> set[str]:
        sizes = Counter(step.path.rpartition("/")[0] for step in steps)
        if expand is True:
            return set()
        wanted = () if expand is False else expand
        return {
            path
            for path, size in sizes.items()
            if path and size > FOLD_ABOVE and path not in wanted
        }

    def _counts(
        self, steps: Iterable[DrawnStep], states: Mapping[str, str]
    ) -> dict[str, Counter[str]]:
        """Return the number of steps by state for each box."""
        found: dict[str, Counter[str]] = {path: Counter() for path in self._folded}
        for step in steps:
            if step.kind not in CONTAINING:
                for above in _above(step.path):
                    if above in found:
                        found[above][str(states.get(step.path, ""))] += 1
        return found


def _without_fans(tree: _Tree, expand: Collection[str]) -> tuple[list[Node], list[tuple[str, str]]]:
    """Return the nodes and edges with one node in place of each large fan-out.

    Only fan-outs at the top level of a large graph are replaced, except those whose first path is
    in ``expand``.
    """
    before: dict[str, set[str]] = defaultdict(set)
    after: dict[str, set[str]] = defaultdict(set)
    for source, other in tree.edges:
        before[other].add(source)
        after[source].add(other)
    fans: dict[object, list[Node]] = defaultdict(list)
    whole = tree.inner.get(None, [])
    for node in whole if len(whole) > FOLD_ABOVE else ():
        if node.steps is None and node.path not in tree.inner:
            around = (frozenset(before[node.path]), frozenset(after[node.path]))
            fans[(node.kind, node.label, around)].append(node)
    box: dict[str, Node] = {}
    for fan in fans.values():
        if len(fan) > FAN_ABOVE and fan[0].path not in expand:
            states = Counter(node.state for node in fan)
            counts = {
                state.value: states[state.value] for state in StepState if states[state.value]
            }
            name = f"{fan[0].name} … {fan[-1].name}"
            folded = replace(fan[0], name=name, state=None, steps=len(fan), counts=counts)
            box |= dict.fromkeys((node.path for node in fan), folded)
    nodes = dict.fromkeys(
        box[node.path].path if node.path in box else node.path for node in tree.nodes
    )
    known = {node.path: node for node in tree.nodes} | {step.path: step for step in box.values()}
    edges = dict.fromkeys(
        tuple(box[end].path if end in box else end for end in edge) for edge in tree.edges
    )
    return [known[path] for path in nodes], [(source, other) for source, other in edges]


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _text(node: Node) -> str:
    """Return the label in the box of a node."""
    what = f" ({node.label})" if node.label else ""
    if node.steps is None:
        return node.name + what
    counts = ", ".join(f"{count} {state}" for state, count in node.counts.items())
    return f"{node.name}{what} ({node.steps} steps{': ' + counts if counts else ''})"


# --- Graphviz -------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _dot_label(node: Node) -> str:
    # Graphviz interprets entities such as ``&lt;`` only in labels.
    lines = [_text(node)] + ([f"({node.state})"] if node.state else [])
    return '"' + "\\n".join(_quoted(line.replace("&", "&amp;"))[1:-1] for line in lines) + '"'


def _dot_level(tree: _Tree, parent: str | None, indent: str) -> list[str]:
    lines = []
    for node in tree.inner.get(parent, ()):
        attributes = f"label={_dot_label(node)}"
        if node.kind == "missing":
            attributes += ', style="rounded,dashed"'
        elif node.state:
            attributes += f", fillcolor={_COLOURS.get(node.state, _ELSE)}"
        if node.path not in tree.inner:
            lines.append(f"{indent}{_quoted(node.path)} [{attributes}];")
            continue
        lines.append(f"{indent}subgraph {_quoted('cluster_' + node.path)} {{")
        lines.append(f"{indent}  label={_dot_label(node)};")
        # An edge cannot end at a subgraph, so each graph gets an invisible node. A grafting step
        # has a visible node.
        attributes = "shape=point, style=invis" if node.kind in CONTAINING else attributes
        lines.append(f"{indent}  {_quoted(node.path)} [{attributes}];")
        lines += _dot_level(tree, node.path, indent + "  ")
        lines.append(indent + "}")
    return lines


# --- Mermaid --------------------------------------------------------------------------------------

_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Words that Mermaid does not accept as the id of a node.
_WORDS = re.compile(
    "end|graph|flowchart|subgraph|style|linkstyle|classdef|class|click|default|direction|href|call|interpolate|"
    "accTitle|accDescr|TB|TD|BT|RL|LR",
    re.IGNORECASE,
)
#: Characters with a meaning in Mermaid, or in the Markdown and HTML of its labels: special
#: characters, ``_`` around a word (emphasis), and the beginning of a list.
_MARKS = re.compile(
    r"""["#&<>`*\\$~|:;%{}[\]]|(?<!\w)_|_(?!\w)|(?<=\A[-+])\s|(?<=\A\d)[.)]|(?<=\A\d\d)[.)]"""
)


def _mermaid_ids(nodes: Sequence[Node]) -> dict[str, str]:
    """Return an id for each path: the path itself if Mermaid accepts it, or else ``step_1`` and so
    on.
    """
    ids: dict[str, str] = {}
    taken = set()
    for node in nodes:
        name = node.path.replace("/", "_")
        if _SAFE.fullmatch(name) and not _WORDS.fullmatch(name) and name not in taken:
            ids[node.path] = name
            taken.add(name)
    number = 0
    for node in nodes:
        while node.path not in ids:
            number += 1
            if f"step_{number}" not in taken:
                ids[node.path] = f"step_{number}"
    return ids


def _mermaid_level(
    tree: _Tree, ids: Mapping[str, str], parent: str | None, indent: str
) -> list[str]:
    lines = []
    for node in tree.inner.get(parent, ()):
        text = _MARKS.sub(lambda found: f"#{ord(found[0])};", _text(node))
        box = f'{ids[node.path]}["{text}"]'
        if node.path not in tree.inner:
            lines.append(indent + box)
            continue
        lines.append(f"{indent}subgraph {box}")
        lines += _mermaid_level(tree, ids, node.path, indent + "  ")
        lines.append(f"{indent}end")
    return lines

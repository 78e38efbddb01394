"""Refuse further use of habits that made this code dense: ``[style]`` in ``house.toml`` limits how
often they occur.

The limits only go down. Each rule states what to write instead. ruff has no rules for these habits.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LIMITS = Path(__file__).with_name("house.toml")
HOUSE = LIMITS.parent.parent / "crawler_lifecycle"
#: The maximum number of places that a complaint of one rule names.
SHOWN = 5
#: The maximum number of nodes of the syntax tree in a returned expression, and of lines of a
#: helper.
RETURNED_MAX, HELPER_LINES = 60, 3
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WORD = re.compile(r"[A-Z][a-z0-9]*")
_PARTICIPLE = re.compile(r".*(ed|en|wn)|Begun|Done|Found|Gone|Held|Kept|Left|Made|Said|Sent|Told")


@dataclass(frozen=True)
class Module:
    """A parsed module. ``nodes`` are all its nodes, and ``parents`` maps each node to the node that
    contains it.
    """

    path: Path
    nodes: tuple[ast.AST, ...]
    parents: dict[ast.AST, ast.AST]


def read_module(path: Path) -> Module:
    """Parse a module."""
    nodes = tuple(ast.walk(ast.parse(path.read_text())))
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    return Module(path, nodes, parents)


def find_tuple_assignments(module: Module) -> Iterator[int]:
    """Yield the lines of assignments of several values at once that do not use each other, unlike a
    swap.
    """
    for node in module.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        targets = {
            ast.unparse(name) for target in node.targets for name in getattr(target, "elts", ())
        }
        used = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
        if targets and not targets & used:
            yield node.lineno


def find_walruses(module: Module) -> Iterator[int]:
    """Yield the lines of assignments inside expressions, except in conditions and comprehensions."""
    for node in module.nodes:
        if isinstance(node, ast.NamedExpr) and not _in_condition(module, node):
            yield node.lineno


def _in_condition(module: Module, node: ast.AST) -> bool:
    child = node
    while (parent := module.parents.get(child)) is not None:
        if isinstance(
            parent, ast.comprehension | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        ):
            return True
        if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert | ast.match_case):
            return child in (getattr(parent, "test", None), getattr(parent, "guard", None))
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False


def find_long_returns(module: Module) -> Iterator[int]:
    """Yield the lines of returned expressions that do the work of several statements."""
    for node in module.nodes:
        if (
            isinstance(node, ast.Return)
            and node.value
            and sum(1 for _ in ast.walk(node.value)) > RETURNED_MAX
        ):
            yield node.lineno


def find_ones(module: Module) -> Iterator[int]:
    """Yield the lines of loops whose variable is called ``one``."""
    for node in module.nodes:
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for target in ast.walk(node.target):
                if isinstance(target, ast.Name) and target.id == "one":
                    yield target.lineno


def find_participles(module: Module) -> Iterator[int]:
    """Yield the lines of classes whose name is a single participle."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            name = node.name.lstrip("_")
            if _WORD.fullmatch(name) and _PARTICIPLE.fullmatch(name):
                yield node.lineno


def find_tiny_helpers(module: Module) -> Iterator[int]:
    """Yield the lines of private functions that are used once and have fewer than ``HELPER_LINES``
    lines of code.
    """
    used = Counter(node.id for node in module.nodes if isinstance(node, ast.Name))
    used.update(node.attr for node in module.nodes if isinstance(node, ast.Attribute))
    for node in module.nodes:
        if (
            not isinstance(node, FUNCTIONS)
            or not node.name.startswith("_")
            or node.name.startswith("__")
        ):
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = {
            line
            for part in body
            for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
        }
        if not node.decorator_list and used[node.name] == 1 and len(lines) < HELPER_LINES:
            yield node.lineno


#: For each rule in ``house.toml``, the function that finds its places, and what to write instead.
RULES: dict[str, tuple[Callable[[Module], Iterator[int]], str]] = {
    "tuple_assignments": (find_tuple_assignments, "one assignment for each value"),
    "walruses": (find_walruses, "an assignment of its own before the expression"),
    "long_returns": (find_long_returns, "name the parts, then return"),
    "loops_over_one": (find_ones, "the singular of what is looped over"),
    "participle_classes": (find_participles, "two words of the field, such as DeliveryAttempt"),
    "tiny_helpers": (find_tiny_helpers, "the code itself where the helper is called"),
}


def find_names_twice(modules: list[Module]) -> list[str]:
    """Return public classes whose name also occurs in another module, with their places."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{module.path.relative_to(HOUSE)}:{node.lineno}")
    return [
        f"{name} ({', '.join(found)})" for name, found in sorted(places.items()) if len(found) > 1
    ]


def find_places(modules: list[Module]) -> dict[str, list[str]]:
    """Return all places of each rule."""
    found = {
        name: [
            f"{module.path.relative_to(HOUSE)}:{line}"
            for module in modules
            for line in finder(module)
        ]
        for name, (finder, _) in RULES.items()
    }
    return {**found, "names_twice": find_names_twice(modules)}


def list_complaints(places: dict[str, list[str]], limits: dict[str, int]) -> Iterator[str]:
    """Yield one line for each rule that is broken more often than ``house.toml`` allows, or less
    often.
    """
    for name, found in places.items():
        fix = RULES[name][1] if name in RULES else "a name that says whose it is"
        most = limits.get(name, 0)
        if len(found) > most:
            yield (
                f"{name}: {len(found)}, at most {most}; write {fix}. Among them: "
                f"{', '.join(found[-SHOWN:])}"
            )
        elif len(found) < most:
            yield f"{name}: only {len(found)} are left: write that number into {LIMITS.name}"


if __name__ == "__main__":
    house = [
        read_module(path) for path in sorted(HOUSE.rglob("*.py")) if "__pycache__" not in path.parts
    ]
    answers = list(
        list_complaints(find_places(house), tomllib.loads(LIMITS.read_text()).get("style", {}))
    )
    print("\n".join(answers), end="\n" if answers else "")
    sys.exit(len(answers) > 0)

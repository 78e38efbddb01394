"""docs/managers_rows.md is complete, and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "managers_rows.md"
ROWS = [
    *(f"S-{n:02}" for n in (*range(1, 18), *range(20, 28), *range(30, 37), 40, *range(50, 65))),
    *(f"S-D{n}" for n in range(1, 14)),
]


def _tests(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_rule_has_a_test_or_a_reason() -> None:
    lines = re.findall(r"^\| (S-D?\d+)\b[^|]*\| ([^|]*) \| ([^|]*) ?\|$", PAGE.read_text(), re.MULTILINE)
    assert [row for row, _, _ in lines] == ROWS
    for row, tests, also in lines:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", tests)
        assert named or (tests == "reason" and len(also.strip()) > 20), row
        for file, name in named:
            assert name in _tests(file), f"{row}: there is no {file}::{name}"

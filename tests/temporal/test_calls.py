"""Calls to Temporal's own services, without the methods of its client."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeGuard

ROOTS = [
    Path(__file__).resolve().parents[2] / name
    for name in ("crawler_lifecycle", "tests", "benchmarks", "tools")
]
SERVICES = ("workflow_service", "operator_service")


def _is_direct(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr in SERVICES
    )


def test_every_direct_call_is_retried() -> None:
    """A server ends each connection every few minutes, and a call at that moment is CANCELLED.

    The SDK repeats such calls only if it is told to: it does so for the methods of its client, but
    not by default for these.
    """
    calls = [
        (f"{path.relative_to(root.parent)}:{node.lineno}", node)
        for root in ROOTS
        for path in sorted(root.rglob("*.py"))
        if any(name in (text := path.read_text()) for name in SERVICES)
        for node in ast.walk(ast.parse(text))
        if _is_direct(node)
    ]
    assert len(calls) > 15
    unsafe = [where for where, call in calls if "retry" not in [word.arg for word in call.keywords]]
    assert not unsafe, f"pass retry=True: {unsafe}"

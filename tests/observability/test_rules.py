"""Security rules that the source must follow.

``tests/gateway/test_security.py`` tests what happens to texts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "crawler_lifecycle"
MODULES = sorted(ROOT.rglob("*.py"))

#: Calls that turn data into code, anywhere.
FORBIDDEN = {
    *(
        "eval",
        "exec",
        "compile",
        "os.system",
        "os.popen",
        "pickle.load",
        "pickle.loads",
        "marshal.loads",
    ),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "tempfile.mktemp", "subprocess.getoutput"),
}


#: Where one of them is allowed; nothing else is parsed.
SUSPECT = re.compile(
    rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(FORBIDDEN)))})\s*\(|\bshell\s*="
)


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _made_code(path: Path) -> Iterator[str]:
    text = path.read_text()
    for name, call in _calls(ast.parse(text)) if SUSPECT.search(text) else ():
        if name in FORBIDDEN:
            yield f"{path.relative_to(ROOT)}:{call.lineno}: {name}"
        shell = next((k.value for k in call.keywords if k.arg == "shell"), None)
        if shell is not None and name.split(".")[0] in (
            "subprocess",
            "asyncio",
            "Popen",
            "run",
            "processes",
        ):
            yield f"{path.relative_to(ROOT)}:{call.lineno}: a shell"


def test_data_never_becomes_code() -> None:
    assert [found for path in MODULES for found in _made_code(path)] == []


def test_sql_is_put_together_in_few_places_and_there_from_names_of_ours() -> None:
    """The linter (S608) refuses SQL that is composed of texts; whoever disables it has to change
    this test.
    """
    silenced = {str(path.relative_to(ROOT)) for path in MODULES if "noqa: S608" in path.read_text()}
    assert silenced == {
        *("store/base/bulk.py", "features/graphs/store/steps.py", "store/runs/moves.py"),
        *("store/migrations/ddl.py", "store/runs/newest.py"),
    }

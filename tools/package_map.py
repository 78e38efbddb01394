"""``python -m tools.package_map CONTRIBUTING.md`` writes the table of packages into the page.

The table contains the first sentence of each docstring, and is between the two ``MARKS``.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "crawler_lifecycle"
MARKS = (
    "<!-- packages: `python3 -m tools openapi` writes this table -->\n",
    "<!-- end of packages -->\n",
)


def mapped(text: str) -> str:
    """Return the page with the present table.

    Raises ``ValueError`` if a mark is missing or occurs twice.
    """
    before, inside = text.split(MARKS[0])
    _, after = inside.split(MARKS[1])
    rows = [f"| `{name}/` | {meaning} |\n" for name, meaning in packages()]
    return "".join([before, MARKS[0], "| package | content |\n|---|---|\n", *rows, MARKS[1], after])


def packages() -> list[tuple[str, str]]:
    """Return the path of each package and feature below ``crawler_lifecycle/``, with the first
    sentence of its docstring.
    """
    files = [*ROOT.glob("*/__init__.py"), *ROOT.glob("features/*/__init__.py")]
    return [
        (path.parent.relative_to(ROOT).as_posix(), _first_sentence(path)) for path in sorted(files)
    ]


def _first_sentence(path: Path) -> str:
    lines = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    sentence, _, _ = " ".join(lines.split()).replace("``", "`").partition(". ")
    if not sentence:
        raise ValueError(f"{path}: write a docstring that says what the package holds")
    return sentence.rstrip(".")


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(mapped(page.read_text()))

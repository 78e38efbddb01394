"""Refuse code that grew: more tokens in a folder than ``house.toml`` allows, more words on a page,
or more docstrings that ask. Refuse words that the glossary has replaced in ``README.md``, in
``docs/`` and in the texts of the code: docstrings, comments, messages, templates, scripts and TOML
files.

It counts tokens instead of lines, so that nobody makes lines denser to pass. A room is the first
folder or module in ``crawler_lifecycle/``. Layout, comments and docstrings do not count. A
docstring asks if it begins with a word like "What". It should begin with a noun or a verb.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

LIMITS = Path(__file__).with_suffix(".toml")
HOUSE = LIMITS.parent.parent / "crawler_lifecycle"
DOCS = LIMITS.parent.parent / "docs"
#: The maximum number of words on a page in ``docs/``.
PAGE = 2_500
ASKING = frozenset(
    {"What", "Whether", "Where", "How", "Those", "Whoever", "Who", "When", "Why", "That", "Which"}
)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
#: Pages that are generated from texts in the code.
MADE_OF_CODE = ("problems.md", "settings.md")
#: Text that is not prose: fenced blocks, code, quoted messages, targets of links, and HTML.
NO_PROSE = re.compile(
    r"^ *```.*?^ *```|(`+)[^`].*?\1|\"[^\"\n]*\"|(?<=\])\([^)\s]*\)|<[^>]*>",
    re.DOTALL | re.MULTILINE,
)
#: Code in texts of Python and TOML, and the characters that mark literals and comments.
NO_TEXT = re.compile(
    r"(`+)[^`].*?\1|\{(?:[^{}]|\{[^{}]*\})*\}|\(\?P<\w+>|(?:\b[bfr]{1,2})?\"|#|^\[.*\]$|^\w+ =",
    re.DOTALL | re.MULTILINE,
)
#: Code in templates: Jinja's statements, and HTML tags.
NO_TEMPLATE = (re.compile(r"\{([{%#]).*?[}%#]\}", re.DOTALL), re.compile(r"<[^>]*>"))
#: Parts of code in templates: a class, a literal that people may read, or any other character.
LITERAL = re.compile(r"class=\"[^\"]*\"|(?P<literal>\"[^\"\n]* [^\"\n]*\")|\S")
#: In a script: a comment, a literal that people may read, or any other character.
SCRIPT = re.compile(r"(?P<text>//[^\n]*|\"[^\"\n]*\")|[^\n]")
#: Tokens with texts. From Python 3.12 on, f-strings have tokens of their own.
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_tokens(source: str) -> int:
    """Return the number of tokens of code: names, numbers, strings, operators and keywords.

    The tokens are counted in the form in which ``ast`` writes the code. Therefore, line breaks, the
    commas and parentheses around them, and the pieces of a divided string make no difference.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            setattr(node, "body", [child for child in body if not _is_text(child)])  # noqa: B010
    tokens = tokenize.generate_tokens(io.StringIO(ast.unparse(tree)).readline)
    return sum(token.type not in NO_CODE for token in tokens)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def asking(source: str) -> int:
    """Return the number of docstrings of modules, classes and functions that begin with a word in
    ``ASKING``.
    """
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED))
    return sum((ast.get_docstring(node) or "-").split()[0] in ASKING for node in nodes)


def complaints(house: Path, limits: Mapping[str, Any]) -> Iterator[str]:
    """Yield each figure that the code exceeds, with the fix."""
    rooms, asked = Counter[str](), Counter[str]()
    for file in house.rglob("*.py"):
        room, source = file.relative_to(house).parts[0], file.read_text()
        rooms[room] += code_tokens(source)
        asked[room] += asking(source)
    for room, tokens in sorted(rooms.items()):
        if tokens > (most := limits["rooms"].get(room, 0)):
            yield (
                f"{room} has {tokens:,} tokens of code, at most {most:,}: remove something, or "
                f"change {LIMITS.name}"
            )
    if rooms.total() > limits["tokens"]:
        yield (
            f"all rooms have {rooms.total():,} tokens of code, at most {limits['tokens']:,}: "
            "remove something"
        )
    if asked.total() > (most := limits["asking"]):
        where = ", ".join(f"{room} {number}" for room, number in asked.most_common(5))
        yield (
            f"{asked.total():,} docstrings ask ({where}), at most {most:,}: begin them with a "
            "noun or a verb"
        )


def long_pages(docs: Path, most: int) -> Iterator[str]:
    """Yield a complaint for each page that is too long, and one if all pages together have more
    than ``most`` words.
    """
    words = {page.name: len(page.read_text().split()) for page in docs.glob("*.md")}
    for name, number in sorted(words.items()):
        if number > PAGE:
            yield f"docs/{name} has {number:,} words, at most {PAGE:,}: shorten or divide it"
    if (total := sum(words.values())) > most:
        yield f"docs/ has {total:,} words, at most {most:,}: shorten another page"


def prose(page: str) -> str:
    """Return a page of Markdown in which blanks replace everything that is not prose.

    Each word stays on its line.
    """
    return NO_PROSE.sub(lambda found: re.sub(r"\S", " ", found[0]), page)


def texts(file: Path) -> str:
    """Return the comments, the docstrings, and the literals that contain a blank.

    Each word stays on its line.
    """
    source = file.read_text()
    if file.suffix == ".md":
        return prose(source)
    if file.suffix == ".toml":
        return NO_TEXT.sub(_lines, source)
    if file.suffix == ".js":
        return SCRIPT.sub(lambda found: found[0] if " " in (found["text"] or "") else " ", source)
    if file.suffix == ".html":
        for pattern in NO_TEMPLATE:
            source = pattern.sub(lambda found: LITERAL.sub(_lines, found[0]), source)
        return source
    lines = [""] * len(source.splitlines())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXTS and " " in token.string:
            words = NO_TEXT.sub(_lines, token.string).splitlines()
            for number, line in enumerate(words, token.start[0] - 1):
                lines[number] += f" {line}"
    return "\n".join(lines)


def _lines(code: re.Match[str]) -> str:
    """Return a literal in a template that people may read, or else the line breaks of the code."""
    return code.groupdict().get("literal") or "\n" * code[0].count("\n") or " "


def replaced_words(files: Iterable[Path], replaced: Mapping[str, str]) -> Iterator[str]:
    """Yield each position at which the texts of a file contain a replaced word, with what to write
    instead.
    """
    for file in files:
        text = texts(file)
        where = file.name if file.suffix == ".md" else file
        for words, instead in replaced.items():
            pattern = words.replace(" ", r"\s+")
            for found in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
                line = text.count("\n", 0, found.start()) + 1
                yield (
                    f"{where}:{line}: {' '.join(found[0].split())!r}: write {instead} "
                    "(docs/glossary.md)"
                )


if __name__ == "__main__":
    figures = tomllib.loads(LIMITS.read_text())
    pages = [
        DOCS.with_name("README.md"),
        *(page for page in sorted(DOCS.glob("*.md")) if page.name not in MADE_OF_CODE),
    ]
    code = [
        file
        for file in sorted(HOUSE.rglob("*"))
        if file.suffix in {".py", ".html", ".js", ".toml"}
        # A migration that landed may not change, and vendored scripts are not ours.
        and file.parent.name not in {"versions", "vendor"}
    ]
    found = [
        *complaints(HOUSE, figures),
        *long_pages(DOCS, figures["words"]),
        *replaced_words(pages, figures["replaced"] | figures["replaced_in_pages"]),
        *replaced_words(code, figures["replaced"]),
    ]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(len(found) > 0)

"""The pages name the program's verbs and exit codes, help texts name every option, and code on
pages is valid.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml
from cyclopts import App, CycloptsError

from crawler_lifecycle.cli import main, session
from crawler_lifecycle.cli.problems import Exit

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("cli.md",))
#: The first cells of the tables with verbs.
CELLS = [
    cell
    for table in re.findall(r"^\| verb \|.*\n\|.*\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    for cell in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
]
EXAMPLES = re.findall(r"^(crawlctl .+)$", DOCUMENT, re.MULTILINE)


def _verbs(app: App, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Return every verb that does something, by its first name."""
    if path and app.default_command is not None:
        yield " ".join(path)
    seen = []
    for name in app:
        below = app[name]
        if not name.startswith("-") and below not in seen:
            seen.append(below)
            yield from _verbs(below, (*path, name))


APP = main.build()
VERBS = set(_verbs(APP))


def test_every_verb_says_what_it_does_and_every_documented_verb_exists() -> None:
    named = set()
    for cell in CELLS:
        noun, colon, verbs = cell.rpartition(": ")
        words = re.findall(r"`([^`]+)`", verbs)
        named |= {f"{noun.strip('`')} {word}" for word in words} if colon else set(words)
    assert len(named) > 40
    assert named <= VERBS
    for verb in VERBS:
        app = APP
        for word in verb.split():
            app = app[word]
        assert len(str(app.help or app.default_command.__doc__ or "")) > 10, verb


def test_aliases_are_documented() -> None:
    for verb, alias in main.ALIASES.items():
        assert f"`{alias}` is `{verb}`" in DOCUMENT


def test_examples_are_calls_that_the_program_takes() -> None:
    for line in EXAMPLES:
        words = shlex.split(line)[1:]
        ends = [n for n, word in enumerate(words) if word in ("|", ">")]
        _, rest = session.split(words[: ends[0]] if ends else words)
        command, bound, *_ = APP.parse_args(rest, print_error=False, exit_on_error=False)
        assert callable(command), line
        assert bound is not None, line


def test_every_call_on_every_page_is_one_that_the_program_takes() -> None:
    wrong, pages = [], [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
    for page in pages:
        for block in re.findall(
            r"^ *```\w*\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            for line in re.findall(
                r"^ *(?:\$ )?crawlctl (.+)$", block.replace("\\\n", " "), re.MULTILINE
            ):
                words = shlex.split(re.sub(r"\$?\b(RUN|TASK)\b", "7", line), comments=True)
                ends = [n for n, word in enumerate(words) if word in ("|", ">")]
                try:
                    APP.parse_args(
                        session.split(words[: ends[0]] if ends else words)[1], exit_on_error=False
                    )
                except CycloptsError as error:
                    wrong.append(f"{page.name}: crawlctl {line}: {error}")
    assert wrong == []
    assert len(pages) > 40


def _documents(text: str) -> list[object]:
    return list(yaml.safe_load_all(text))


def test_data_and_programs_on_every_page_can_be_read() -> None:
    readers = {
        "python": ast.parse,
        "json": json.loads,
        "toml": tomllib.loads,
        "yaml": lambda y: [*yaml.safe_load_all(y)],
    }
    seen, wrong = Counter[str](), []
    for page in sorted(DOCS.glob("*.md")):
        for kind, text in re.findall(
            r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            seen[kind] += 1
            try:
                readers.get(kind, str)(text)
            except (SyntaxError, ValueError, yaml.YAMLError) as error:
                wrong.append(f"{page.name}: {text[:60]}…: {error}")
    assert wrong == []
    assert min(seen[kind] for kind in readers) > 0, seen


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^- (\d+): ", DOCUMENT, re.MULTILINE)}
    assert documented == {int(code) for code in Exit}


def test_every_option_of_a_verb_is_explained_by_its_help_or_with_the_common_ones() -> None:
    common = DOCUMENT.partition("Several verbs have these:")[2].partition("\n## ")[0]
    unsaid = []
    for verb in sorted(VERBS):
        app = APP
        for word in verb.split():
            app = app[word]
        for one in app.assemble_argument_collection(parse_docstring=True):
            # Without a name: a group of options.
            names = [name for name in one.names if name.startswith("-")]
            said = one.parameter.help or any(
                re.search(rf"`{name}(?![a-z-])", common) for name in names
            )
            unsaid += [(verb, names)] if names and not said else []
    assert unsaid == []


def test_options_of_every_verb_are_documented() -> None:
    table = DOCUMENT.partition("Several verbs have these:")[0]
    for option in (*session._VALUES, *session._FLAGS):
        assert option in table, option
    for word in (*session.FORMATS, *session.TIME_FORMATS):
        assert f"`{word}`" in table, word
    assert set(session.FORMATS) <= set(re.findall(r"[a-z]+", session.HELP))

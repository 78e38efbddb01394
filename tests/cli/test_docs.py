"""docs/cli.md and the program name the same verbs, options and exit codes; what every page has in code can be read."""

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
DOCUMENT = (DOCS / "cli.md").read_text(encoding="utf-8")
#: ``### verb`` -> its section.
SECTIONS = dict(re.findall(r"^### ([a-z ]+[a-z-]*)\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
EXAMPLES = re.findall(r"^(crawlctl .+)$", DOCUMENT, re.MULTILINE)


def _verbs(app: App, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every verb that does something, by its first name."""
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


def test_every_verb_is_documented_and_every_documented_verb_exists() -> None:
    assert set(SECTIONS) == VERBS
    for verb, section in SECTIONS.items():
        assert re.search(rf"^crawlctl {verb}\b", section, re.MULTILINE), f"{verb} has no example"


def test_aliases_are_documented() -> None:
    for verb, alias in main.ALIASES.items():
        assert f"`{alias}`" in SECTIONS[verb]


def test_examples_are_calls_that_the_program_takes() -> None:
    for line in EXAMPLES:
        words = shlex.split(line)[1:]
        ends = [n for n, word in enumerate(words) if word in ("|", ">")]
        _, rest = session.split(words[: ends[0]] if ends else words)
        command, bound, *_ = APP.parse_args(rest, print_error=False, exit_on_error=False)
        assert callable(command), line
        assert bound is not None, line


def test_every_call_on_every_page_is_one_that_the_program_takes() -> None:
    wrong, pages = [], sorted(DOCS.glob("*.md"))
    for page in pages:
        for block in re.findall(r"^ *```\w*\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in re.findall(r"^ *(?:\$ )?crawlctl (.+)$", block.replace("\\\n", " "), re.MULTILINE):
                words = shlex.split(re.sub(r"\$?\b(RUN|TASK)\b", "7", line), comments=True)
                ends = [n for n, word in enumerate(words) if word in ("|", ">")]
                try:
                    APP.parse_args(session.split(words[: ends[0]] if ends else words)[1], exit_on_error=False)
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
        for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            seen[kind] += 1
            try:
                readers.get(kind, str)(text)
            except (SyntaxError, ValueError, yaml.YAMLError) as error:
                wrong.append(f"{page.name}: {text[:60]}…: {error}")
    assert wrong == []
    assert min(seen[kind] for kind in readers) > 0, seen


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT, re.MULTILINE)}
    assert documented == {int(code) for code in Exit}


def _options(verb: str) -> list[tuple[str, ...]]:
    """The names of each option of a verb, without those that only take one back."""
    app = APP
    for word in verb.split():
        app = app[word]
    arguments = app.assemble_argument_collection()
    own = ("--empty-",)  # the program's own defaults leave them out
    named = [tuple(n for n in one.names if n.startswith("-") and not n.startswith(own)) for one in arguments]
    return [names for names in named if names]


def test_every_option_of_a_verb_is_documented() -> None:
    common = DOCUMENT.partition("mean the same wherever a verb has them")[2].partition("\n- ")[0]

    def documented(verb: str, option: str) -> bool:
        return re.search(rf"{option}(?![a-z-])", SECTIONS[verb] + common) is not None

    options = [(verb, names) for verb in sorted(VERBS) for names in _options(verb)]
    assert [one for one in options if not any(documented(one[0], option) for option in one[1])] == []


def test_options_of_every_verb_are_documented() -> None:
    table = DOCUMENT.partition("## Exit codes")[0]
    for option in (*session._VALUES, *session._FLAGS):
        assert option in table, option
    for word in (*session.FORMATS, *session.TIME_FORMATS):
        assert f"`{word}`" in table, word
    assert set(session.FORMATS) <= set(re.findall(r"[a-z]+", session.HELP))

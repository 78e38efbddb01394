"""The checks of ``make lint``: no room or page exceeds its limit, no docstring begins like a
question, and no text has a word that the glossary replaced.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools import house

LONG = '"""A module."""\n\n# a comment\nONE = 1\nTWO = (\n    2\n)\n"""An attribute."""\n'


def made(folder: Path, source: str) -> Path:
    (folder / "rooms" / "deep").mkdir(parents=True)
    (folder / "rooms" / "deep" / "module.py").write_text(source)
    (folder / "alone.py").write_text("THREE = 3\n")
    return folder


def limits(
    *, rooms: int = 6, alone: int = 3, tokens: int = 9, asking: int = 0
) -> dict[str, object]:
    return {"rooms": {"rooms": rooms, "alone.py": alone}, "tokens": tokens, "asking": asking}


def test_comments_docstrings_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    assert house.code_tokens(LONG) == 6
    assert house.code_tokens('TEXT = """\n\na value\n"""\n') == 3
    assert list(house.complaints(made(tmp_path, LONG), limits())) == []


def test_a_broken_line_has_as_many_tokens_as_a_long_one() -> None:
    broken = 'show(\n    "one"\n    "two",\n    (\n        three\n        + 4\n    ),\n)\n'
    assert house.code_tokens(broken) == house.code_tokens('show("onetwo", three + 4)\n') == 8


@pytest.mark.parametrize(
    ("at_most", "told"),
    [
        (limits(rooms=5), "rooms has 6 tokens of code, at most 5: "),
        (limits(alone=2), "alone.py has 3 tokens of code, at most 2: "),
        (limits(tokens=8), "all rooms have 9 tokens of code, at most 8: "),
    ],
)
def test_a_room_that_is_too_long_is_refused_by_name(
    tmp_path: Path, at_most: dict[str, object], told: str
) -> None:
    [complaint] = house.complaints(made(tmp_path, LONG), at_most)
    assert complaint.startswith(told)


def test_a_room_without_a_figure_is_refused(tmp_path: Path) -> None:
    [complaint] = house.complaints(
        made(tmp_path, LONG), {"rooms": {"rooms": 8}, "tokens": 11, "asking": 0}
    )
    assert complaint.startswith("alone.py has 3 tokens")


def test_docstrings_that_ask_are_refused(tmp_path: Path) -> None:
    source = '"""What it is."""\nclass A:\n    """Whether so."""\n    def f(self):\n        """Whatever you like."""\n'
    [complaint] = house.complaints(made(tmp_path, source), limits(rooms=40, tokens=40, asking=1))
    assert complaint.startswith("2 docstrings ask (rooms 2, alone.py 0), at most 1: ")


def test_a_page_that_is_too_long_is_refused_and_pages_that_are_too_long_together(
    tmp_path: Path,
) -> None:
    for name, words in (("short.md", 2500), ("long.md", 2501)):
        (tmp_path / name).write_text("word " * words)
    page, docs = house.long_pages(tmp_path, 5000)
    assert page.startswith("docs/long.md has 2,501 words, at most 2,500: ")
    assert docs.startswith("docs/ has 5,001 words, at most 5,000: ")
    assert len(list(house.long_pages(tmp_path, 5001))) == 1


REPLACED = {"goes? on": "continue", "beside": "next to"}


def test_a_replaced_word_is_refused_with_its_place_and_what_to_write_instead(
    tmp_path: Path,
) -> None:
    (page := tmp_path / "page.md").write_text("# A page\n\nThe crawl goes\non, and Beside it.\n")
    assert list(house.replaced_words([page], REPLACED)) == [
        "page.md:3: 'goes on': write continue (docs/glossary.md)",
        "page.md:4: 'Beside': write next to (docs/glossary.md)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ beside goes on\n```",
        "1. A list:\n\n    ```\n    beside\n    ```",
        "`beside`, ``a `beside` b``",
        'The run shows "the crawl goes on".',
        "[next to](beside.md#goes-on)",
        '<a id="beside"></a>',
        "besides, foregoes on_error",
    ],
)
def test_code_quoted_messages_and_targets_of_links_are_no_prose(text: str, tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text(text)
    assert list(house.replaced_words([page], REPLACED)) == []


def test_prose_after_code_is_read(tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text(
        "```\nbeside\n```\n`a` beside `b`\n\n```\nbeside\n```\n"
    )
    assert list(house.replaced_words([page], REPLACED)) == [
        "page.md:4: 'beside': write next to (docs/glossary.md)"
    ]


@pytest.mark.parametrize(
    ("name", "source", "lines"),
    [
        ("a.py", '"""It goes\non."""\nbeside = 1  # beside\n', [1, 3]),
        ("a.py", 'show(\n    "it goes "\n    f"on {beside} with"\n)\n', [2]),
        (
            "a.py",
            'read("beside", f"{beside} {goes.on}")  # ``beside``\n"""`a` ``beside`` b"""\n',
            [],
        ),
        ("a.html", '{% set beside = 1 %}\n<p class="is beside" title="go on">{{ beside }}</p>', []),
        ("a.html", '\n<p title="It goes on">beside</p>\n{{ show("is beside") }}', [2, 2, 3]),
        ("a.js", 'beside("is beside", "beside"); // it goes on\nsay("x"); beside = "y";', [1, 1]),
        ("a.toml", '[beside]\nbeside = "a `beside` b"\na = "it is\\\nbeside"\n# beside', [4, 5]),
    ],
)
def test_texts_in_code_are_read(name: str, source: str, lines: list[int], tmp_path: Path) -> None:
    (file := tmp_path / name).write_text(source)
    found = list(house.replaced_words([file], REPLACED))
    assert [int(words.split(":")[1]) for words in found] == lines
    assert all(words.startswith(f"{file}:") for words in found)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("each look at the cluster", 1),
        ("the next looks", 1),
        ("it looks like a stop; look for it", 0),
        ("the page shows", 1),
        ("the page of a schedule", 0),
        ("it went on by itself", 1),
        ("a ladder of rungs", 2),
    ],
)
def test_the_list_of_this_project(text: str, refused: int, tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text(text)
    figures = tomllib.loads(house.LIMITS.read_text())
    replaced = figures["replaced"] | figures["replaced_in_pages"]
    assert len(list(house.replaced_words([page], replaced))) == refused


def test_the_glossary_has_few_words_in_one_sentence_each() -> None:
    lines = [
        line
        for line in (house.DOCS / "glossary.md").read_text().splitlines()
        if line.startswith("- ")
    ]
    assert len(lines) <= 31
    assert [line for line in lines if not line.endswith(".") or ". " in line] == []

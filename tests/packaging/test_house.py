"""The gate of ``make lint``: no room or page is longer than its figure, and no docstring begins like a question."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house

LONG = '"""A module."""\n\n# a comment\nONE = 1\nTWO = (\n    2\n)\n"""An attribute."""\n'


def made(folder: Path, source: str) -> Path:
    (folder / "rooms" / "deep").mkdir(parents=True)
    (folder / "rooms" / "deep" / "module.py").write_text(source)
    (folder / "alone.py").write_text("THREE = 3\n")
    return folder


def limits(*, rooms: int = 8, alone: int = 3, tokens: int = 11, asking: int = 0) -> dict[str, object]:
    return {"rooms": {"rooms": rooms, "alone.py": alone}, "tokens": tokens, "asking": asking}


def test_comments_docstrings_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    assert house.code_tokens(LONG) == 8
    assert house.code_tokens('TEXT = """\n\na value\n"""\n') == 3
    assert list(house.complaints(made(tmp_path, LONG), limits())) == []


@pytest.mark.parametrize(
    ("at_most", "told"),
    [
        (limits(rooms=7), "rooms has 8 tokens of code, at most 7: "),
        (limits(alone=2), "alone.py has 3 tokens of code, at most 2: "),
        (limits(tokens=10), "all rooms have 11 tokens of code, at most 10: "),
    ],
)
def test_a_room_that_is_too_long_is_refused_by_name(tmp_path: Path, at_most: dict[str, object], told: str) -> None:
    [complaint] = house.complaints(made(tmp_path, LONG), at_most)
    assert complaint.startswith(told)


def test_a_room_without_a_figure_is_refused(tmp_path: Path) -> None:
    [complaint] = house.complaints(made(tmp_path, LONG), {"rooms": {"rooms": 8}, "tokens": 11, "asking": 0})
    assert complaint.startswith("alone.py has 3 tokens")


def test_docstrings_that_ask_are_refused(tmp_path: Path) -> None:
    source = '"""What it is."""\nclass A:\n    """Whether so."""\n    def f(self):\n        """Whatever you like."""\n'
    [complaint] = house.complaints(made(tmp_path, source), limits(rooms=40, tokens=40, asking=1))
    assert complaint.startswith("2 docstrings ask (rooms 2, alone.py 0), at most 1: ")


def test_a_page_that_is_too_long_is_refused_and_pages_that_are_too_long_together(tmp_path: Path) -> None:
    for name, words in (("short.md", 2500), ("long.md", 2501)):
        (tmp_path / name).write_text("word " * words)
    page, docs = house.long_pages(tmp_path, 5000)
    assert page.startswith("docs/long.md has 2,501 words, at most 2,500: ")
    assert docs.startswith("docs/ has 5,001 words, at most 5,000: ")
    assert len(list(house.long_pages(tmp_path, 5001))) == 1

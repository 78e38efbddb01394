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


def limits(*, rooms: int = 4, alone: int = 1, lines: int = 5, asking: int = 0) -> dict[str, object]:
    return {"rooms": {"rooms": rooms, "alone.py": alone}, "lines": lines, "asking": asking}


def test_comments_docstrings_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    assert house.code_lines(LONG) == 4
    assert house.code_lines('TEXT = """\n\na value\n"""\n') == 4
    assert list(house.complaints(made(tmp_path, LONG), limits())) == []


@pytest.mark.parametrize(
    ("at_most", "told"),
    [
        (limits(rooms=3), "rooms has 4 lines of code, at most 3: "),
        (limits(alone=0), "alone.py has 1 lines of code, at most 0: "),
        (limits(lines=4), "all rooms have 5 lines of code, at most 4: "),
    ],
)
def test_a_room_that_is_too_long_is_refused_by_name(tmp_path: Path, at_most: dict[str, object], told: str) -> None:
    [complaint] = house.complaints(made(tmp_path, LONG), at_most)
    assert complaint.startswith(told)


def test_a_room_without_a_figure_is_refused(tmp_path: Path) -> None:
    [complaint] = house.complaints(made(tmp_path, LONG), {"rooms": {"rooms": 4}, "lines": 5, "asking": 0})
    assert complaint.startswith("alone.py has 1 lines")


def test_docstrings_that_ask_are_refused(tmp_path: Path) -> None:
    source = '"""What it is."""\nclass A:\n    """Whether so."""\n    def f(self):\n        """Whatever you like."""\n'
    [complaint] = house.complaints(made(tmp_path, source), limits(asking=1))
    assert complaint.startswith("2 docstrings ask (rooms 2, alone.py 0), at most 1: ")


def test_a_page_that_is_too_long_is_refused_and_pages_that_are_too_long_together(tmp_path: Path) -> None:
    for name, words in (("short.md", 2500), ("long.md", 2501)):
        (tmp_path / name).write_text("word " * words)
    page, docs = house.long_pages(tmp_path, 5000)
    assert page.startswith("docs/long.md has 2,501 words, at most 2,500: ")
    assert docs.startswith("docs/ has 5,001 words, at most 5,000: ")
    assert len(list(house.long_pages(tmp_path, 5001))) == 1

"""The tests that run on the newest Python exist."""

from __future__ import annotations

from pathlib import Path

from tools.newest_python import TESTS

ROOT = Path(__file__).parents[2]


def test_every_file_of_the_list_is_there() -> None:
    assert [name for name in TESTS if not (ROOT / name).is_file()] == []

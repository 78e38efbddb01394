"""The final output of the story."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.story import farewell


@pytest.mark.parametrize("failed", [[], ["one check"]])
def test_the_last_words_name_no_address_of_what_has_ended(failed: list[str]) -> None:
    words = "\n".join(farewell(Path(".crawl"), failed, 30.0))
    assert "http" not in words
    assert ("dev" in words) is not bool(failed)

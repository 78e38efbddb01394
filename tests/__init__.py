"""What helpers assert is told in words, like the assertions of the tests themselves."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    *(f"tests.{room.name}" for room in Path(__file__).parent.iterdir() if room.is_dir())
)

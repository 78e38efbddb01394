"""A package, so that pytest also rewrites the assertions in helpers and explains failures there."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    *(f"tests.{room.name}" for room in Path(__file__).parent.iterdir() if room.is_dir())
)

"""A short soak with fixed plans: whatever is done to the stack, in the end nothing untrue is on record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.plan import without_lost_disks, write_plan
from tests.soak.soak import soak


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_untrue_is_told(tmp_path: Path, seed: int) -> None:
    violations = soak(tmp_path / "state", without_lost_disks(write_plan(seed, 1.0, 40)))
    assert violations == []

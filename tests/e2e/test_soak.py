"""The soak of the stack: an undisturbed one with all kinds of runs; the ``soak`` task executes
those with faults.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.soak.plan import Plan, without_lost_disks, write_plan
from tools.soak.soak import soak

#: What disturbs nothing: every end has only one explanation, on any machine.
CALM = ("start", "add", "wake", "audit")


def calm(plan: Plan) -> Plan:
    """The plan without stops, kills, freezes and outages."""
    return replace(plan, steps=[step for step in plan.steps if step.kind in CALM])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_runs_that_nobody_disturbs_are_told_as_they_were(tmp_path: Path) -> None:
    """Every kind of outcome occurs, and the soak can read all of them."""
    plan = calm(write_plan(1, 0.5, 12))
    assert {step.kind for step in plan.steps} == set(CALM)
    assert soak(tmp_path / "state", plan) == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_untrue_is_told(tmp_path: Path, seed: int) -> None:
    violations = soak(tmp_path / "state", without_lost_disks(write_plan(seed, 1.0, 40)))
    assert violations == []

"""The margins that proofs of absence allow for agree with what the doctor accepts."""

from __future__ import annotations

import pytest

from crawler_lifecycle.cli.doctor.checks.cluster import DATE_S
from crawler_lifecycle.cli.doctor.report import clock_line
from crawler_lifecycle.domain.clocks import CLOCK_MARGIN_S, CLOCK_OFF_MAX_S


@pytest.mark.parametrize("uncertain_s", [0.0, 0.05, DATE_S])
@pytest.mark.parametrize("sign", [1, -1])
def test_two_machines_that_the_doctor_lets_pass_are_within_the_margin(
    uncertain_s: float, sign: int
) -> None:
    """Each is compared with the same third machine; they may differ in opposite directions, by more
    than is certain.
    """
    tenths = [n / 10 for n in range(200)]
    passed = [
        off for off in tenths if clock_line("the API", sign * off, uncertain_s).level != "bad"
    ]
    assert max(passed) >= CLOCK_OFF_MAX_S
    assert 2 * (max(passed) + uncertain_s) <= CLOCK_MARGIN_S

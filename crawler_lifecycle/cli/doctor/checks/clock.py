"""Compares our clock with that of another machine."""

from __future__ import annotations

from crawler_lifecycle.cli.doctor.line import Line
from crawler_lifecycle.domain.clocks import CLOCK_OFF_MAX_S

#: Times of the cluster and ours are compared to the second; below this nobody is misled.
WARN_S = 2.0


def clock_line(whose: str, ahead_s: float, uncertain_s: float) -> Line:
    """How far another clock is ahead of ours, known to within ``uncertain_s``.

    Bad beyond what proofs of absence allow for.
    """
    off = max(0.0, abs(ahead_s) - uncertain_s)
    if off < WARN_S:
        return Line("clock", "ok", f"agrees with that of {whose} within {max(uncertain_s, abs(ahead_s)) + 0.05:.1f} s")
    words = f"this machine is {off:.1f} s {'behind' if ahead_s > 0 else 'ahead of'} {whose}"
    cure = "synchronise both clocks (chrony, systemd-timesyncd): lags and schedules are wrong by that much"
    if off <= CLOCK_OFF_MAX_S:
        return Line("clock", "warn", words, cure)
    cure += f", and beyond {CLOCK_OFF_MAX_S:.0f} s a task may come to life after a stop proved that it will not"
    return Line("clock", "bad", words, cure)

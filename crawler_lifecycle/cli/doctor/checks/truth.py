"""Checks whether everything that is open is looked after: looks that are overdue, and what no workflow carries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from crawler_lifecycle.cli.doctor.line import Line
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.domain.audits.overdue import overdue_before, overdue_words
from crawler_lifecycle.store.store import Store

from .of_database import asked

CURE = "a worker of the role audit sees to it within a minute: start one, or read in its log why it cannot"


def check_truth(context: Context) -> Sequence[Line]:
    """One line."""
    return asked(context, "truth", truth_lines)


def truth_lines(store: Store) -> list[Line]:
    """What is overdue or lost, in a sentence."""
    now = datetime.now(UTC)
    wrong = overdue_words(store.overdue.overdue_looks(overdue_before(now)), now)
    if wrong is not None:
        return [Line("truth", "bad", wrong, CURE)]
    return [Line("truth", "ok", "no look is overdue, and everything open has its workflow")]

"""The state of a crawler, from its open incidents, its live runs and its newest run."""

from enum import StrEnum


class CrawlerState(StrEnum):
    """The state of a crawler, from the worst state to the best."""

    FAILS = "fails"
    FLAKY = "flaky"
    LESS = "brings less"
    FAILED_LAST = "failed last"
    WAITS = "waits"
    RUNNING = "running"
    HEALTHY = "healthy"
    NEVER_RAN = "never ran"

    @property
    def rank(self) -> int:
        """The position of this state in the order of all states."""
        return _RANKS[self]


_RANKS = {state: rank for rank, state in enumerate(CrawlerState)}

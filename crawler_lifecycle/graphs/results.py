"""Answers of a function or a worker beside a value, and results as those see them who ask for several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.bounds import YEAR_S, refusal

#: Bytes that ``Record`` takes when nothing is said.
RECORD_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cancel:
    """The step is cancelled; what depends on it is too, unless it ignores that.

    >>> from crawler_lifecycle.graphs import Cancel, Workflow
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def check():
    ...     return Cancel("nothing is new")
    >>> with in_memory():
    ...     workflow = Workflow().add("check", check).start()
    ...     print(workflow.wait().state, workflow.get_job("check").reason)
    cancelled nothing is new
    """

    reason: str = "it returned Cancel"
    """For people: why."""


@dataclass(frozen=True, slots=True)
class Snooze:
    """The step is tried again after so many seconds, and this time does not count.

    >>> from crawler_lifecycle.graphs import Snooze, Workflow, current_job
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def check():
    ...     return Snooze(60) if current_job().attempt < 3 else "ready"
    >>> with in_memory():
    ...     status = Workflow().add("check", check).start().wait()
    >>> status.state, status.duration
    ('completed', datetime.timedelta(seconds=120))
    """

    seconds: float
    """At most a year of them."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= YEAR_S:
            raise refusal("seconds", self.seconds, f"give 0 to {YEAR_S:g} seconds")


@dataclass(frozen=True, slots=True)
class Record:
    """A worker's result. (A function's result is recorded without it.)

    >>> from crawler_lifecycle.graphs import Record
    >>> Record({"items": 7}, limit=1_000_000)
    Record(value={'items': 7}, limit=1000000)
    """

    value: Any
    """What JSON can hold, and dates, times, decimals, UUIDs and bytes."""
    limit: int = RECORD_MAX
    """Most bytes of it; a larger one fails the try."""


def with_above(path: str) -> list[str]:
    """A path, and before it those of the graphs that it is in, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def nested(recorded: Mapping[str, Any], below: str) -> Any:
    """Results by path as dicts within dicts, from this path on; the result itself when that is one step. Of a step that
    has grafted, what is in it counts and not its own."""
    holding = {path.rpartition("/")[0] for path in recorded}
    if below in recorded and below not in holding:
        return recorded[below]
    prefix = f"{below}/" if below else ""
    found: dict[str, Any] = {}
    for path, value in recorded.items():
        if path in holding or not path.startswith(prefix):
            continue
        *above, name = path.removeprefix(prefix).split("/")
        level = found
        for one in above:
            level = level.setdefault(one, {})
        level[name] = value
    return found or None

"""Retries of tasks: which ends another try follows, when, how often, and with how much memory.

The policy is merged key by key: the request's keys first, then those of the crawler's entry, then
the installation's. A try is decided from recorded facts alone, so deciding twice gives the same
answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from .bounds import DAY_S, INT_MAX, STRICT, Bound, check_number, refusal
from .ended_by import EndedBy
from .ends import FINAL, PLAIN, RETRY, Reading
from .resources import parse_memory

#: Word of a policy -> who ended the task, and the outcome; ``None``: any other outcome. No policy
#: retries other ends: a person, another limit or a service ended the task, or another try would end
#: in the same way.
WORDS: Mapping[str, tuple[EndedBy, str | None]] = {
    "interrupted": (EndedBy.CLUSTER, "interrupted"),
    "evicted": (EndedBy.CLUSTER, "evicted"),
    "lost": (EndedBy.CLUSTER, "lost"),
    "oom": (EndedBy.LIMIT, "killed by oom"),
    "banned": (EndedBy.CRAWLER, "banned"),
    "failed": (EndedBy.CRAWLER, None),
}
#: Limits of a crawler's own that it reports. Another try would reach them again.
NEVER = ("memusage_exceeded", "diskusage_exceeded")
_NUMBERS: Mapping[str, Bound] = {
    "max": Bound(0, 100, whole=True, or_none=True),
    "backoff_s": Bound(0, DAY_S, "seconds", or_none=True),
    "factor": Bound(1, 100, or_none=True),
    "cap_s": Bound(0, DAY_S, "seconds", or_none=True),
    "jitter": Bound(0, 1, or_none=True),
    "budget": Bound(0, 1_000_000, whole=True, or_none=True),
    "memory_factor": Bound(1, 10, or_none=True, above=True),
}
_LABELS_MAX = 20
_EXITS_MAX = 50
#: The end of a note about a task that no try follows because of its exit code.
IS_FINAL = " is final"
#: The most bytes of memory without a cap, and the most characters of a try's memory: those of its
#: column.
_MEMORY_MOST = 2**62
_MEMORY_TEXT = 20


@dataclass(frozen=True, slots=True)
class OtherNodes:
    """Nodes for later tries: those with these labels, from the try after ``after`` failed tries
    on.
    """

    __pydantic_config__: ClassVar = STRICT

    node_selector: dict[str, str] = field(default_factory=dict)
    after: int = 1

    def __post_init__(self) -> None:
        check_number("retries.retry_on.after", self.after, Bound(1, 100, whole=True))
        if not 1 <= len(self.node_selector) <= _LABELS_MAX:
            raise refusal(
                "retries.retry_on.node_selector",
                self.node_selector,
                f"give 1 to {_LABELS_MAX} labels of nodes",
            )


@dataclass(frozen=True, slots=True)
class Retries:
    """A policy of retries, or the keys of it that one source gives.

    ``None``: the next source decides.

    Raises ``InvalidRequest``.
    """

    __pydantic_config__: ClassVar = STRICT

    max: int | None = None
    """The most tries after the first one, for each task and attempt of the run. 0: none."""
    on: list[str] | None = None
    """The ends that another try follows (``WORDS``)."""
    backoff_s: float | None = None
    """Seconds from the end to the next try. Each further wait is ``factor`` times longer, at most
    ``cap_s``.
    """
    factor: float | None = None
    cap_s: float | None = None
    jitter: float | None = None
    """The part of the wait by which it varies, so that many tasks do not come at once."""
    budget: int | None = None
    """The most tries of all tasks together, in one attempt of the run. Without it: two for each
    task, at least 10.
    """
    memory_factor: float | None = None
    """After ``oom``, the next try has so many times the memory, at most ``memory_cap``."""
    memory_cap: str | None = None
    remember: bool | None = None
    """True: later runs of the crawler begin with the memory that was needed."""
    final_exits: list[int] | None = None
    """Exit codes that are never retried, besides those that the crawler's ``ends`` call final."""
    retry_on: OtherNodes | None = None

    def __post_init__(self) -> None:
        for name, bound in _NUMBERS.items():
            check_number(f"retries.{name}", getattr(self, name), bound)
        unknown = [word for word in self.on or () if word not in WORDS]
        if unknown or len(self.on or ()) > len(WORDS):
            raise refusal(
                "retries.on",
                unknown[0] if unknown else self.on,
                f"give words of {', '.join(WORDS)}, each once",
            )
        for code in (self.final_exits or ())[: _EXITS_MAX + 1]:
            check_number("retries.final_exits", code, Bound(1, 255, whole=True))
        if len(self.final_exits or ()) > _EXITS_MAX:
            raise refusal(
                "retries.final_exits",
                len(self.final_exits or ()),
                f"give at most {_EXITS_MAX} exit codes",
            )
        parse_memory(self.memory_cap, "retries.memory_cap")

    def check(self, memory: str | None = None) -> None:
        """Raise ``InvalidRequest`` for keys that contradict each other, or the memory of the first
        try.
        """
        if self.budget is not None and self.max is not None and self.budget < self.max:
            raise refusal(
                "retries.budget",
                self.budget,
                f"give at least max ({self.max}), or lower max: no task could have all its tries",
            )
        if self.cap_s is not None and self.backoff_s is not None and self.cap_s < self.backoff_s:
            raise refusal(
                "retries.cap_s",
                self.cap_s,
                f"give at least backoff_s ({self.backoff_s:g}), or lower backoff_s: no wait may be "
                "longer than cap_s",
            )
        first = parse_memory(memory)
        cap = parse_memory(self.memory_cap)
        if first is not None and cap is not None and cap < first:
            raise refusal(
                "retries.memory_cap",
                self.memory_cap,
                f"give at least the memory of the first try ({memory}), or lower resources.memory",
            )

    def over(self, base: Retries) -> Retries:
        """Return this policy with the keys of ``base`` where this one has none."""
        return replace(
            base,
            **{f.name: own for f in fields(self) if (own := getattr(self, f.name)) is not None},
        )


#: The policy if nothing else is configured: what the cluster caused is retried automatically.
DEFAULT = Retries(
    max=3,
    on=["interrupted", "evicted", "lost"],
    backoff_s=30,
    factor=2,
    cap_s=3600,
    jitter=0.2,
    memory_factor=1.5,
)


@dataclass(frozen=True, slots=True)
class EndedTry:
    """The recorded end of a task's try."""

    outcome: str | None
    exit_code: int | None
    retry: int
    """The number of tries before this one, in this attempt of the run."""
    key: str
    """A text that identifies the try. The jitter depends on it."""
    ended_by: str | None = EndedBy.CRAWLER
    """``None``: an older build recorded the end, so its outcome alone decides."""
    memory: str | None = None
    """The memory with which it executed; ``None``: unknown."""


@dataclass(frozen=True, slots=True)
class NextTry:
    """The try that follows an end."""

    wait_s: float
    memory: str | None = None
    """More memory than the try before had; ``None``: as much."""


def next_try(
    policy: Retries, end: EndedTry, used: int, budget: int, ends: Reading = PLAIN
) -> NextTry | str:
    """Return the next try, or the reason why there is none.

    ``policy`` is a whole one (``resolved``). ``used``: tries of the run's budget so far. ``ends``
    defines which exit codes are final, and which are always worth a try.
    """
    outcome = end.outcome or "failed"
    most = policy.max or 0
    fits = (
        word
        for word, (by, of) in WORDS.items()
        if end.ended_by in (by, None) and of in (outcome, None)
    )
    word = next(fits, None)
    if word is None or outcome in NEVER:
        return f"{outcome} is never retried"
    # After an end that the cluster caused, the crawler's own exit code proves nothing.
    meaning = ends.codes.get(end.exit_code or 0) if word == "failed" else None
    if meaning == FINAL or end.exit_code in (policy.final_exits or ()):
        return f"exit {end.exit_code}{IS_FINAL}"
    if word not in (policy.on or ()) and meaning != RETRY:
        return f"{word} is not in retries.on"
    if end.retry >= most:
        return f"{end.retry} of {most} tries made" if most else "retries.max is 0"
    if used >= budget:
        return f"the run's budget of {budget} tries is used up"
    memory = _more_memory(policy, end.memory) if word == "oom" else None
    if memory is not None and memory == end.memory:
        return (
            "it had all the memory that retries.memory_cap allows "
            f"({policy.memory_cap or _MEMORY_MOST})"
        )
    return NextTry(_wait_s(policy, end), memory)


def budget_of(policy: Retries, tasks: int) -> int:
    """Return the most tries of all tasks of the run together."""
    return (
        policy.budget
        if policy.budget is not None
        else min(INT_MAX, max(10, policy.max or 0, 2 * tasks))
    )


def _wait_s(policy: Retries, end: EndedTry) -> float:
    """Return the wait. It is computed from the try, so a repeated decision gives the same wait."""
    wait = min(
        policy.cap_s or 0, (policy.backoff_s or 0) * (policy.factor or 1) ** min(end.retry, 100)
    )
    part = zlib.crc32(end.key.encode()) / 2**32  # spread evenly from 0 to 1
    return float(wait * (1 + (policy.jitter or 0) * (2 * part - 1)))


def _more_memory(policy: Retries, memory: str | None) -> str | None:
    """Return the memory of the next try, in whole MiB or as the cap; ``None``: that of this try is
    unknown.

    The text is short, whatever the policy and the request contain: at most ``_MEMORY_TEXT``
    characters.
    """
    now = parse_memory(memory)
    cap = parse_memory(policy.memory_cap) or _MEMORY_MOST
    if now is None or policy.memory_factor is None:
        return None
    if now >= cap:
        return memory
    more = -(-max(now + 1, int(now * policy.memory_factor)) // 2**20)
    if more * 2**20 < cap:
        return f"{more}Mi"
    return policy.memory_cap if 0 < len(policy.memory_cap or "") <= _MEMORY_TEXT else str(cap)


def resolved(request: Retries | None, crawler: Retries | None, installation: Retries) -> Retries:
    """Return the whole policy of a run.

    Keys of different sources may contradict each other. Then the smaller number holds: ``budget``,
    ``cap_s``.
    """
    return (request or Retries()).over(crawler or Retries()).over(installation).over(DEFAULT)

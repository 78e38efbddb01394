"""Retries of tasks: which outcomes are followed by another try, when, how often, and with how much
memory.

The retry policy is merged key by key from the request, the crawler's entry and the installation, in
this order of precedence. The decision about a try uses only recorded facts, so a repeated decision
gives the same answer.
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

#: Word in a policy -> the party that ended the task, and the outcome, where ``None`` means all
#: outcomes that are not listed here. Policies retry only these outcomes. After any other outcome,
#: either a person, a different limit or a service ended the task, or another try would end in the
#: same way.
WORDS: Mapping[str, tuple[EndedBy, str | None]] = {
    "interrupted": (EndedBy.CLUSTER, "interrupted"),
    "evicted": (EndedBy.CLUSTER, "evicted"),
    "lost": (EndedBy.CLUSTER, "lost"),
    "oom": (EndedBy.LIMIT, "killed by oom"),
    "banned": (EndedBy.CRAWLER, "banned"),
    "failed": (EndedBy.CRAWLER, None),
}
#: Outcomes by which a crawler reports that it reached its own limits. Another try would reach these
#: limits again.
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
#: The end of a note about a task that is not retried because of its exit code.
IS_FINAL = " is final"
#: The maximum memory in bytes if there is no cap, and the maximum length of the text for a try's
#: memory, which is the length of its column.
_MEMORY_MOST = 2**62
_MEMORY_TEXT = 20


@dataclass(frozen=True, slots=True)
class OtherNodes:
    """The labels that nodes for tries must have after ``after`` failed tries."""

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
    """A retry policy, or the keys of a retry policy from one source.

    ``None`` leaves a key to the next source. Raises ``InvalidRequest``.
    """

    __pydantic_config__: ClassVar = STRICT

    max: int | None = None
    """The maximum number of tries after the first one, for each task and attempt of the run. 0
    means none.
    """
    on: list[str] | None = None
    """The outcomes that are retried (``WORDS``)."""
    backoff_s: float | None = None
    """Seconds from the end to the next try. Each further wait is the previous wait multiplied by
    ``factor``, up to ``cap_s``.
    """
    factor: float | None = None
    cap_s: float | None = None
    jitter: float | None = None
    """The share by which the wait varies, so that many tasks do not start at the same time."""
    budget: int | None = None
    """The maximum number of tries for all tasks together in one attempt of the run. The default is
    two tries for each task, but at least 10.
    """
    memory_factor: float | None = None
    """After ``oom``, the memory of the next try is multiplied by this, up to ``memory_cap``."""
    memory_cap: str | None = None
    remember: bool | None = None
    """True if the crawler's next runs begin with the memory that was needed."""
    final_exits: list[int] | None = None
    """Exit codes that are never retried, in addition to those that are final in the crawler's
    ``ends``.
    """
    retry_on: OtherNodes | None = None

    def __post_init__(self) -> None:
        for name, bound in _NUMBERS.items():
            check_number(f"retries.{name}", getattr(self, name), bound)
        unknown = [word for word in self.on or () if word not in WORDS]
        if unknown or len(self.on or ()) > len(WORDS):
            raise refusal(
                "retries.on",
                unknown[0] if unknown else self.on,
                f"give each of these words at most once: {', '.join(WORDS)}",
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
        """Raise ``InvalidRequest`` for keys that contradict each other or the memory of the first
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
        """Return this policy. Keys that it does not set are taken from ``base``."""
        return replace(
            base,
            **{f.name: own for f in fields(self) if (own := getattr(self, f.name)) is not None},
        )


#: The policy if nothing is configured: outcomes that the cluster caused are retried automatically.
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
    """The recorded end of one try."""

    outcome: str | None
    exit_code: int | None
    retry: int
    """The number of tries before this one in this attempt of the run."""
    key: str
    """A string that identifies the try and determines the jitter of the next wait."""
    ended_by: str | None = EndedBy.CRAWLER
    """``None`` if an older build recorded the end, so that only its outcome decides."""
    memory: str | None = None
    """The memory with which it executed, or ``None`` if unknown."""


@dataclass(frozen=True, slots=True)
class NextTry:
    """The next try after an end."""

    wait_s: float
    memory: str | None = None
    """The increased memory limit, or ``None`` if the try gets the same memory as the previous
    try."""


def next_try(
    policy: Retries, end: EndedTry, used: int, budget: int, ends: Reading = PLAIN
) -> NextTry | str:
    """Return the next try, or the reason why there is no next try. ``policy`` must be complete
    (``resolved``). ``used`` is the number of tries that were already taken from the run's budget.
    ``ends`` defines the exit codes that are final, and the exit codes that are always retried.
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
            "it already had all the memory that retries.memory_cap allows "
            f"({policy.memory_cap or _MEMORY_MOST})"
        )
    return NextTry(_wait_s(policy, end), memory)


def budget_of(policy: Retries, tasks: int) -> int:
    """Return the maximum number of tries for all tasks in the run together."""
    return (
        policy.budget
        if policy.budget is not None
        else min(INT_MAX, max(10, policy.max or 0, 2 * tasks))
    )


def _wait_s(policy: Retries, end: EndedTry) -> float:
    """Return the wait in seconds. The wait is computed from the try, so a repeated decision gives
    the same wait.
    """
    wait = min(
        policy.cap_s or 0, (policy.backoff_s or 0) * (policy.factor or 1) ** min(end.retry, 100)
    )
    part = zlib.crc32(end.key.encode()) / 2**32  # evenly distributed between 0 and 1
    return float(wait * (1 + (policy.jitter or 0) * (2 * part - 1)))


def _more_memory(policy: Retries, memory: str | None) -> str | None:
    """Return the memory for the next try: a text in whole MiB, or the text of the cap. Return
    ``None`` if the memory of this try is unknown. The text has at most ``_MEMORY_TEXT`` characters,
    whatever the policy and the request contain.
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
    """Return the complete retry policy for a run.

    If keys from different sources contradict each other, the smaller number applies, for example
    for ``budget`` and ``cap_s``.
    """
    return (request or Retries()).over(crawler or Retries()).over(installation).over(DEFAULT)

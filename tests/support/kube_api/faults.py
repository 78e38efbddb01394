"""Faults on request: what happens to a response, or in its place."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.kube_api.problems import REASONS


class Fault:
    """One faulty request."""


@dataclass(frozen=True)
class Answer(Fault):
    """This status in place of the response; the request has no effect."""

    status: int
    message: str = "scripted"
    reason: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        return {
            **{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"},
            **{
                "message": self.message,
                "reason": self.reason or REASONS.get(self.status, ""),
                "code": self.status,
            },
        }


def throttled(retry_after: str | None = "1") -> Answer:
    """429, with or without a ``Retry-After``."""
    headers = {"Retry-After": retry_after} if retry_after is not None else {}
    return Answer(429, "Too many requests, please try again later.", headers=headers)


@dataclass(frozen=True)
class Garbage(Fault):
    """Status 200 with a body that is no response; no effect."""

    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class Silence(Fault):
    """Nothing for this time, then the connection is closed. No effect unless ``after_effect``."""

    seconds: float = 60.0
    after_effect: bool = False


@dataclass(frozen=True)
class Drip(Fault):
    """The right response, ``size`` bytes at a time with a pause between them; ``head`` sends the
    head like this as well.
    """

    pause_s: float
    size: int = 1
    head: bool = False


@dataclass(frozen=True)
class Cut(Fault):
    """The right response, but the connection ends after this many bytes of its body; ``chunked``:
    one without a length; ``reset``: by an RST.
    """

    after: int
    chunked: bool = False
    reset: bool = False


@dataclass(frozen=True)
class Truncated(Fault):
    """The right response without its last bytes, in a body that is formally complete."""

    missing: int = 1


@dataclass(frozen=True)
class LostAnswer(Fault):
    """The request takes effect, and the connection is closed without a response."""


@dataclass(frozen=True)
class Reset(Fault):
    """The connection is reset (RST) without a response."""

    after_effect: bool = False


@dataclass(frozen=True)
class Stale(Fault):
    """A list as it was this many writes ago, as a lagging cache shows it."""

    writes: int


@dataclass(frozen=True)
class Mutate(Fault):
    """The right response, changed: ``change`` gets the decoded body."""

    change: Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class StreamEnds(Fault):
    """A watch ends after this many events: cleanly, or with a broken connection."""

    after: int = 0
    broken: bool = False
    within_event: bool = False


@dataclass(frozen=True)
class StreamError(Fault):
    """A watch sends an ERROR event, then ends."""

    status: int = 410
    reason: str = "Expired"
    message: str = "too old resource version: 1 (100)"


@dataclass
class _Rule:
    method: str
    pattern: re.Pattern[str]
    fault: Fault
    skip: int
    left: int | None


class Script:
    """Which requests fail. Thread-safe."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()

    def add(
        self, method: str, pattern: str, fault: Fault, *, nth: int = 1, times: int | None = 1
    ) -> None:
        """From the ``nth`` request on whose method is this and whose target (with query) contains
        the pattern, ``times`` requests fail (``None``: all of them).
        """
        with self._lock:
            self._rules.append(_Rule(method, re.compile(pattern), fault, nth - 1, times))

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def of(self, method: str, target: str) -> Fault | None:
        """Return the fault of this request; this uses up the first matching rule."""
        with self._lock:
            for rule in self._rules:
                if rule.method not in ("*", method) or not rule.pattern.search(target):
                    continue
                if rule.skip:
                    rule.skip -= 1
                elif rule.left is None or rule.left > 0:
                    rule.left = rule.left - 1 if rule.left is not None else None
                    return rule.fault
        return None

"""JSON lines between a worker and the process that holds a user's class; both sides use this module.

Worker to host: ``{"call": name, ...}`` and, while a call is under way, the answer to a question: ``{"answer": ...}`` or
``{"refused": text}``. Host to worker: questions ``{"ask": name, "args": {...}}``, where it is ``{"at": name, "item":
id}``, and the end of the call: ``{"reply": ...}``, ``{"wrong": text}`` for what the user's class did wrong, or
``{"broken": text}`` for any other exception. Standard library only: every host pays for this import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from crawler_lifecycle.domain.manager import Ended, Facts, Job, Live, Waiting

#: Bytes of one message of a host: a decision with a thousand picks, or a page with its frame.
MESSAGE_MAX = 4 * 1024 * 1024
#: Characters of a text about an error.
TEXT_MAX = 4000


def encode(message: Mapping[str, Any]) -> bytes:
    """One line. Raises ``ValueError`` and ``TypeError`` for what is no JSON."""
    return json.dumps(message, default=_plain, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def live(data: Mapping[str, Any]) -> Live:
    """What ``encode`` made of a ``Live``."""
    return Live(**{**data, "job": Job(**data["job"])})


def waiting(data: Mapping[str, Any]) -> Waiting:
    """What ``encode`` made of a ``Waiting``."""
    return Waiting(**{**data, "job": Job(**data["job"])})


def facts(data: Mapping[str, Any]) -> Facts:
    """What ``encode`` made of ``Facts``."""
    ended = [Ended(**{**one, "live": live(one["live"])}) for one in data["ended"]]
    return Facts(**{**data, "ended": ended})

"""Shared helpers for tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

GATEWAY = "http://gateway.test:8500"
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Result:
    """The result of a call of ``crawlctl``."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as a JSON document."""
        return json.loads(self.out)


Crawlctl = Callable[..., Result]

"""What the tests of the command line share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

GATEWAY = "http://gateway.test:8500"
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Result:
    """How a call of ``crawlctl`` ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as a JSON document."""
        return json.loads(self.out)


Crawlctl = Callable[..., Result]


def check_golden(name: str, text: str) -> None:
    """Compare with the file of this name; ``UPDATE_GOLDEN=1`` writes it instead."""
    file = GOLDEN / name
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), f"{name} differs; if that is right, run the test with UPDATE_GOLDEN=1"

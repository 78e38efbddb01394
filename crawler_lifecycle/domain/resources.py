"""Resources for a task, and quantities of memory and processors in Kubernetes notation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .bounds import CPU_MAX, ID_MAX, STRICT, refusal


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources for a task, in Kubernetes notation (``cpu: 500m``, ``memory: 512Mi``)."""

    __pydantic_config__: ClassVar = STRICT

    cpu: str | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        parse_cpu(self.cpu)
        parse_memory(self.memory)

    def over(self, base: Resources) -> Resources:
        """Return these values. Missing values are taken from ``base``."""
        return Resources(cpu=self.cpu or base.cpu, memory=self.memory or base.memory)


_BINARY = {unit: 2 ** (10 * n) for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_BINARY |= {unit: 10 ** (3 * n) for n, unit in enumerate("kMGTPE", 1)}


def parse_memory(text: str | None, field: str = "resources.memory") -> int | None:
    """Return the number of bytes in a Kubernetes memory quantity (``512Mi``, ``1G``, ``1048576``),
    and ``None`` for ``None``. Raises ``InvalidRequest`` if the text is not such a quantity.
    """
    if text is None:
        return None
    suffix = next((s for s in _BINARY if text.endswith(s)), "")
    try:
        value = float(text.removesuffix(suffix))
    except ValueError:
        value = math.nan
    size = value * _BINARY.get(suffix, 1)
    if not math.isfinite(size) or not 0 < size <= ID_MAX:
        raise refusal(field, text, "give a quantity such as 512Mi or 2Gi")
    return int(size)


def parse_cpu(text: str | None) -> float | None:
    """Return the number of processors in a Kubernetes cpu quantity (``500m``, ``2``, ``0.5``).
    Raises ``InvalidRequest`` if the text is not such a quantity.
    """
    if text is None:
        return None
    number, factor = (text[:-1], 0.001) if text.endswith("m") else (text, 1.0)
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value * factor <= CPU_MAX:
        raise refusal("resources.cpu", text, "give a quantity such as 500m or 2")
    return value * factor

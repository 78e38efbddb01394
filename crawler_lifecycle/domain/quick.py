"""Dataclasses of which a poll makes tens of thousands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["quick_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as quick_dataclass
else:
    from dataclasses import dataclass

    def quick_dataclass(*, frozen: bool, slots: bool) -> Any:
        """Frozen for the type checker alone: to make one that is frozen at runtime takes four times
        as long.
        """
        return dataclass(unsafe_hash=frozen, slots=slots)

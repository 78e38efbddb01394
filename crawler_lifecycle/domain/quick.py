"""Dataclasses of which one poll creates tens of thousands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["quick_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as quick_dataclass
else:
    from dataclasses import dataclass

    def quick_dataclass(*, frozen: bool, slots: bool) -> Any:
        """Make a dataclass that is frozen for the type checker only. The creation of an instance
        that is frozen at runtime takes four times as long.
        """
        return dataclass(unsafe_hash=frozen, slots=slots)

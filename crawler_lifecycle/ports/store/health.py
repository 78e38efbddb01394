"""Whether the database can be used."""

from __future__ import annotations

from typing import Protocol


class StoreHealth(Protocol):
    """The database as a whole."""

    def ping(self) -> None:
        """Raise ``StoreUnavailable`` unless the database answers and has the schema version of this build."""
        ...

"""Response bodies that are made from rows."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class OfRow(BaseModel):
    """A response body whose fields have the names of a row's attributes.

    It can also be a field of another body.
    """

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def from_row(cls, row: object, **own: Any) -> Self:
        """Return the response body. ``own`` has the fields that the row lacks or has in another
        form.
        """
        return cls(
            **{name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)} | own
        )

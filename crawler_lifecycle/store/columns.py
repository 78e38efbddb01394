"""Column types: values as every database takes them and gives them back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, String, Text
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.types import TypeDecorator, TypeEngine

CAUSE_MAX = 4000
"""Characters kept of a text that comes from a cluster, a crawler or a person."""


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime in UTC with microseconds; the databases themselves know no time zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(mysql.DATETIME(fsp=6) if dialect.name == "mysql" else sqlite.DATETIME())  # type: ignore[no-untyped-call]

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def storable(text: str, length: int | None = None) -> str:
    """``text`` as every database takes it: no lone surrogates, and no longer than ``length`` characters."""
    clean = text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
    return clean if length is None or len(clean) <= length else clean[: length - 1] + "…"


class JsonText(str):
    """JSON that is text already, and is stored as it is."""

    __slots__ = ()


def json_text(value: object) -> str:
    """``value`` as JSON that every database takes."""
    if isinstance(value, JsonText):
        return value
    return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


class Words(TypeDecorator[str]):
    """Text from outside, made storable and cut to its column: a long reason must never lose the status it explains."""

    impl = String
    cache_ok = True

    def __init__(self, length: int, *, long: bool = False) -> None:
        super().__init__(length)
        self.length = length
        self.long = long

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if self.long else String(self.length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(str(value), self.length)

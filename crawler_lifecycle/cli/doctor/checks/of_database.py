"""Checks that ask the database one question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crawler_lifecycle.cli.doctor.line import Line
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.compose import build_store
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.store import read_schema
from crawler_lifecycle.store.store import Store


def asked(context: Context, check: str, ask: Callable[[Store], Sequence[Line]]) -> Sequence[Line]:
    """What ``ask`` makes of it; nothing without our schema, which the check of the database tells."""
    try:
        if read_schema(context.known.database.url).problem is not None:
            return []
        return ask(build_store(context.known))
    except LifecycleError as error:
        return [Line(check, "warn", f"{check} cannot be read: {error}", "mend what is told above")]

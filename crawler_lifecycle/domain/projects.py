"""Projects: their names, and the only project that the present caller may see and touch.

One context variable limits a caller. The store reads it wherever it loads a row by a number or a
name, and in every list. So something of another project does not exist for the caller, whatever
asks for it. Nobody else is limited: workers, and the work that a service does on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .bounds import check_name
from .errors import InvalidRequest

#: The project of everything for which nobody names another one.
DEFAULT = "default"
#: The project of a token that sees and touches everything, and of a webhook that gets the events of
#: every project.
ALL = "*"
#: No project has this name: a caller who is limited to it sees nothing.
NONE = ""

_ONLY: ContextVar[str | None] = ContextVar("project", default=None)


def only() -> str | None:
    """Return the only project that the present caller sees; ``None``: it sees all projects."""
    return _ONLY.get()


@contextmanager
def limited(project: str | None) -> Iterator[None]:
    """Limit everything in this block to one project. ``None``: nothing is limited."""
    token = _ONLY.set(project)
    try:
        yield
    finally:
        _ONLY.reset(token)


@contextmanager
def narrowed(project: str | None) -> Iterator[None]:
    """Limit this block to the project that a filter names, if it names one.

    Raises ``InvalidRequest``.
    """
    with limited(only() if project is None else chosen(project)):
        yield


def chosen(wanted: str | None, default: str = DEFAULT) -> str:
    """Return the project of something new: the caller's own, or the one that a caller of all
    projects wants.

    Raises ``InvalidRequest``.
    """
    if wanted is not None:
        check_name("project", wanted)
    own = only()
    if own is not None and wanted not in (None, own):
        raise InvalidRequest(
            f"project: {wanted!r} is not allowed; this token is of project {own!r}, so leave it out"
        )
    return own if own is not None else wanted or default

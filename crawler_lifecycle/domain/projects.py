"""Projects: their names, and the only project that the present caller may see and change.

One context variable limits a caller. The store reads this variable for every list, and whenever it
loads a row by number or name. So objects in another project do not exist for the caller, whatever
code reads them. Workers, and work that a service does on its own, are not limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .bounds import check_name
from .errors import InvalidRequest

#: The project of everything for which no other project is given.
DEFAULT = "default"
#: The project of a token that can see and change everything, and of a webhook that receives the
#: events of every project.
ALL = "*"
#: No project has this name, so a caller who is limited to it sees nothing.
NONE = ""

_ONLY: ContextVar[str | None] = ContextVar("project", default=None)


def only() -> str | None:
    """Return the only project that the present caller may see, or ``None`` if the caller may see
    all projects.
    """
    return _ONLY.get()


@contextmanager
def limited(project: str | None) -> Iterator[None]:
    """Limit everything in this block to one project.

    ``None`` means no limit.
    """
    token = _ONLY.set(project)
    try:
        yield
    finally:
        _ONLY.reset(token)


@contextmanager
def narrowed(project: str | None) -> Iterator[None]:
    """Limit this block to the project that a filter names, if any.

    Raises ``InvalidRequest``.
    """
    with limited(only() if project is None else chosen(project)):
        yield


def chosen(wanted: str | None, default: str = DEFAULT) -> str:
    """Return the project for a new object: the caller's own project or, if the caller may see all
    projects, the requested one.

    Raises ``InvalidRequest``.
    """
    if wanted is not None:
        check_name("project", wanted)
    own = only()
    if own is not None and wanted not in (None, own):
        raise InvalidRequest(
            f"project: {wanted!r} is not allowed; this token belongs to project {own!r}, so leave "
            "it out"
        )
    return own if own is not None else wanted or default

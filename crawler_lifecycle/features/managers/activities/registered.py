"""The user code that workers have registered."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.domain.errors import InvalidRequest, UserCodeUnknown

from ..ports import CODE_READING, UserCodeRow

NAME_MODULE = (
    "name its module in LIFECYCLE_USER_CODE__MODULES on a worker, or put it into the folder "
    "of crawlctl dev"
)


def check_read(rows: Sequence[UserCodeRow], module: str | None) -> None:
    """Raise ``UserCodeUnknown`` while a worker is still reading this module, or, if ``module`` is
    ``None``, any module.
    """
    read = next(
        (row.plan for row in rows if row.kind == CODE_READING and module in (None, row.plan)), None
    )
    if read is not None:
        raise UserCodeUnknown(
            f"A user-code worker is reading the module {read}; send this again in a moment"
        )


def starts_none(*_: object, **__: object) -> bool:
    """Refuse to start a graph on a worker that cannot do so."""
    raise InvalidRequest(
        "this worker starts no graphs; let a worker with the role user-code execute this"
    )

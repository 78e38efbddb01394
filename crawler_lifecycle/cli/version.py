"""The version of what is installed."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import session as options
from .output import emit, show_facts
from .problems import Exit
from .session import current


def installed() -> str:
    """The version of this package."""
    try:
        return version("crawler-lifecycle")
    except PackageNotFoundError:
        return "unknown (not installed)"


def show_version() -> int:
    """Show the version of this program, of Python and of where both are."""
    session = current()
    document = {
        "version": installed(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "package": str(Path(options.__file__).parents[1]),
    }
    table = list(document.items())
    emit(session, document, names=[document["version"]], table=lambda: show_facts(session, table))
    return Exit.DONE

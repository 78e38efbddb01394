"""A benchmark on both databases: SQLite in a temporary file, and MariaDB if it is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mariadb import running_mariadb


def on_both(show: Callable[[str, str], None]) -> None:
    """Call ``show`` with the name and the address of an empty database of each kind.

    Without MariaDB, print what is missing.
    """
    with tempfile.TemporaryDirectory() as folder:
        show("SQLite", f"sqlite:///{Path(folder) / 'state.db'}")
    try:
        with running_mariadb() as server, server.database() as url:
            show("MariaDB", url)
    except pytest.skip.Exception as missing:
        print(missing)

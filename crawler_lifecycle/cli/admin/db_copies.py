"""``crawlctl db backup`` and ``crawlctl db restore``: complete copies of the database."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from cyclopts import Parameter

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.problems import WrongUsage
from crawler_lifecycle.cli.session import load_settings, say
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.settings import sqlite_url

from .services import database_errors, keep_files_private

_Url = Annotated[str | None, Parameter(help="database; default: LIFECYCLE_DATABASE__URL")]


def backup(file: Path, /, *, url: _Url = None) -> None:
    """Write a copy of the database to a new file, while all services are running.

    The copy is a consistent snapshot, and is checked. For MySQL and MariaDB, the commands of the
    server's own tools are shown.

    Parameters
    ----------
    file
        The new file. It must not exist.
    """
    keep_files_private()
    with database_errors():
        source = _file_of(url, file)
        sqlite_files.copy(source, file)
    say(f"{file} is a complete copy of {source}")


def restore(file: Path, /, *, url: _Url = None) -> None:
    """Replace the database with a copy. All services that use the database must have ended; crawls
    may continue.

    Before the replacement, the copy is checked and upgraded. The previous database files are kept
    next to the new one. The next crawlctl dev adopts running tasks that the copy does not
    contain. For MySQL and MariaDB, the commands of the server's own tools are shown.

    Parameters
    ----------
    file
        The copy, which is not changed.
    """
    from crawler_lifecycle.store.migrations import schema_version

    keep_files_private()
    with database_errors():
        target = _file_of(url, file)
        with sqlite_files.unused(target), TemporaryDirectory(dir=target.parent) as folder:
            new = Path(folder, target.name)
            sqlite_files.copy(file, new)
            if schema_version.read_schema(sqlite_url(new)).version is None:
                raise NotInThisState(
                    f"{file} is not one of our databases; give a file from crawlctl db backup"
                )
            schema_version.upgrade(sqlite_url(new))
            # Write the mark before the file is replaced, so that tasks are adopted even after a
            # crash here.
            target.with_name(target.name + sqlite_files.RESTORED).write_text(str(file))
            aside = sqlite_files.set_aside(target, "replaced")
            new.rename(target)
    say(
        f"{target} has the state of {file}; the previous files, if any, are now {aside}*\n"
        "next: crawlctl dev; or crawlctl db upgrade, start your services, then crawlctl audit "
        "--adopt"
    )


def _file_of(url: str | None, copy: Path) -> Path:
    """Return the file of a SQLite database.

    For any other database, raise ``CommandFailed`` with the commands for that database.
    """
    from crawler_lifecycle.store.diagnosis import sqlite_file
    from crawler_lifecycle.store.engine import parse_url

    url = url or load_settings().database.url
    if (found := sqlite_file(url)) is not None:
        return found
    at = parse_url(url)
    server = (
        f"--host={at.host} --port={at.port or 3306} --user={at.username} --password {at.database}"
    )
    file = shlex.quote(str(copy))
    made = f"mysqldump --single-transaction --hex-blob --no-tablespaces {server} > {file}"
    raise WrongUsage(
        "a database server is copied with its own tools",
        f"{made}\n  to restore it: mysql {server} < {file}\n  MariaDB calls them mariadb-dump and "
        "mariadb",
    )

"""Downloads: a file is there under its name when it is complete, and not before."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from crawler_lifecycle.cli.output import clean
from crawler_lifecycle.cli.problems import CommandFailed, Exit


def fetch(pieces: Iterable[bytes], target: Path, sha256: str | None) -> int:
    """Write ``pieces`` to the new file ``target`` once they are complete and have this checksum, if any; their size.

    Until then they are in a file beside it that nobody else can read, and after a failure there is nothing. Raises
    ``CommandFailed``: the file exists, the folder cannot be written to, or the checksum is another one.
    """
    if target.exists() or target.is_symlink():
        raise _exists_already(target)
    draft = target.with_name(f".{secrets.token_hex(8)}.part")  # not by its name, which may be as long as names can be
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        size = _write(pieces, draft, target.name, sha256)
        _publish(draft, target)
    except OSError as error:
        what, cure = f"{clean(target)} cannot be written", "free some space, or choose another folder"
        raise CommandFailed(Exit.ERROR, what, error.strerror or str(error), cure) from None
    finally:
        with suppress(OSError):
            draft.unlink()
    return size


def _exists_already(target: Path) -> CommandFailed:
    cure = "move it away, or choose another folder"
    return CommandFailed(Exit.NOT_IN_THIS_STATE, f"{clean(target)} exists already", None, cure)


def _write(pieces: Iterable[bytes], draft: Path, name: str, sha256: str | None) -> int:
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        if sha256 is not None and digest.hexdigest() != sha256.lower():
            why = f"SHA-256 of the {size:,} bytes received is {digest.hexdigest()}, recorded is {sha256}"
            cure = "try again; if it stays so, crawlctl export RUN --resend --only files makes a new archive"
            raise CommandFailed(Exit.ERROR, f"{name} is not what was exported", why, cure)
        file.flush()
        os.fsync(file.fileno())
    # Now it is an ordinary file of this user, like any other that a command writes.
    mask = os.umask(0)
    os.umask(mask)
    draft.chmod(0o666 & ~mask)
    return size


def _publish(draft: Path, target: Path) -> None:
    """Give the file its name, unless somebody else took that meanwhile. Raises ``CommandFailed`` and ``OSError``."""
    try:
        try:
            os.link(draft, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            draft.replace(target)
    except FileExistsError:
        raise _exists_already(target) from None
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

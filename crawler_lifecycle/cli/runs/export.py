"""``crawlctl export``: shows what was delivered of a run, sends it again, downloads the archive."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import Document, clean, emit, number, show_facts, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import Session, current

from . import tables
from .show import RunId


def export(
    run: RunId,
    /,
    *,
    resend: Annotated[bool, Parameter(negative=(), help="send event and files again")] = False,
    only: Annotated[Literal["event", "files"] | None, Parameter(help="of --resend: only this")] = None,
    attempt: Annotated[int | None, Parameter(help="which attempt; default: the present one")] = None,
    download: Annotated[Path | None, Parameter(help="fetch the archive into this folder, as a new file")] = None,
) -> int:
    """Show what was exported of a run and to whom its events were delivered; send it again, or fetch the archive.

    A download is checked against the recorded SHA-256 and appears under its name only when it is complete.
    """
    session = current()
    if resend and download is not None:
        raise CommandFailed(Exit.USAGE, "--resend and --download exclude each other", None, "give one of them")
    if only is not None and not resend:
        raise CommandFailed(Exit.USAGE, "--only goes with --resend", None, f"crawlctl export {run} --resend")
    with session.gateway() as gateway:
        if resend:
            answer = gateway.export(run, attempt=attempt, event=only != "files", files=only != "event")
            return _resent(session, run, answer)
        found = gateway.run(run)
        if download is None:
            return _show(session, found, attempt)
        record = wanted_export(found, attempt)
        target = download / f"run-{run}-attempt-{record['attempt']}-supporting-files.zip"
        session.say(f"fetching {number(record.get('bytes'))} bytes")
        size = fetch(gateway.archive(run, int(record["attempt"])), target, str(record.get("sha256") or ""))
    facts = [("file", str(target)), ("bytes", number(size)), ("sha256", clean(record.get("sha256")))]
    document = {"run_id": run, "attempt": record["attempt"], "file": str(target), "bytes": size}
    document["sha256"] = record.get("sha256")
    emit(session, document, names=[target], table=lambda: show_facts(session, facts))
    return Exit.DONE


def _resent(session: Session, run: int, answer: Document) -> int:
    lines = [("run", str(run)), ("status", str(answer.get("status"))), ("note", clean(answer.get("note")))]
    shown = [(name, value) for name, value in lines if value]
    emit(session, answer, names=[run], table=lambda: show_facts(session, shown))
    session.say(f"next: crawlctl export {run}")
    return Exit.DONE


def _show(session: Session, run: Document, attempt: int | None) -> int:
    run_id = run.get("run_id")
    exports = _of_attempt(run.get("exports"), attempt)
    deliveries = _of_attempt(run.get("deliveries"), attempt)

    def table() -> None:
        show_rows(session, exports, tables.EXPORTS, empty=f"nothing was exported of run {run_id} yet")
        if exports and deliveries:
            print()
        show_rows(session, deliveries, tables.DELIVERIES, empty="no event was delivered yet")

    document = {"run_id": run_id, "exports": exports, "deliveries": deliveries}
    emit(session, document, names=[one.get("url") for one in exports if one.get("url")], table=table)
    if any(one.get("status") == "failed" for one in (*exports, *deliveries)):
        session.say(f"next: crawlctl export {run_id} --resend")
    elif any(one.get("url") for one in exports):
        session.say(f"next: crawlctl export {run_id} --download .")
    return Exit.DONE


def _of_attempt(rows: Any, attempt: int | None) -> list[dict[str, Any]]:
    return [row for row in rows or () if attempt is None or row.get("attempt") == attempt]


def wanted_export(run: Document, attempt: int | None) -> dict[str, Any]:
    """The export record that an archive is checked against. Raises ``CommandFailed`` when there is no archive."""
    run_id = run.get("run_id")
    known = sorted(_of_attempt(run.get("exports"), attempt), key=lambda row: int(row.get("attempt") or 0))
    ready = [row for row in known if row.get("url") and row.get("sha256")]
    if ready:
        return ready[-1]
    which = f"run {run_id}" + (f" attempt {attempt}" if attempt is not None else "")
    if not known:
        raise CommandFailed(Exit.NOT_FOUND, f"nothing was exported of {which}", None, f"crawlctl export {run_id}")
    why = f"its export is {known[-1].get('status')}" + (f": {known[-1]['error']}" if known[-1].get("error") else "")
    raise CommandFailed(
        Exit.NOT_IN_THIS_STATE, f"{which} has no archive", why, f"crawlctl export {run_id} --resend --only files"
    )


def fetch(pieces: Iterable[bytes], target: Path, sha256: str) -> int:
    """Write ``pieces`` to the new file ``target`` once they are complete and have this checksum; their size.

    Until then they are in a file beside it that nobody else can read, and after a failure there is nothing. Raises
    ``CommandFailed``: the file exists, the folder cannot be written to, or the checksum is another one.
    """
    if target.exists() or target.is_symlink():
        raise _exists_already(target)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        size = _write(pieces, draft, target.name, sha256)
        _publish(draft, target)
    except OSError as error:
        cure = "free some space, or choose another folder"
        raise CommandFailed(Exit.ERROR, f"{target} cannot be written", error.strerror or str(error), cure) from None
    finally:
        with suppress(OSError):
            draft.unlink()
    return size


def _exists_already(target: Path) -> CommandFailed:
    cure = "move it away, or choose another folder"
    return CommandFailed(Exit.NOT_IN_THIS_STATE, f"{target} exists already", None, cure)


def _write(pieces: Iterable[bytes], draft: Path, name: str, sha256: str) -> int:
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        if digest.hexdigest() != sha256.lower():
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

"""``crawlctl files`` and ``crawlctl export``: the supporting files of a run, from its tasks or from
its archive.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.output import clean, emit, number, show_facts, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.domain.status_words import status_word
from crawler_lifecycle.subjects import Document

from . import tables
from .texts import RUN, RunId

#: The maximum number of characters of a file that are printed.
SHOWN_MAX = 1024 * 1024

TaskId = Annotated[int | None, Parameter(help="only those of the task with this id")]


def files_of(gateway: Gateway, run: int, task: int | None) -> tuple[list[Document], str | None]:
    """Return the files of a run with their names in the archive, and a note if there is one."""
    found = gateway.get(f"/v1/runs/{run}/files", task=task)
    left_out = int(found.get("left_out") or 0)
    why = (
        f"{number(left_out)} more are left out: links, pipes, or excess files" if left_out else None
    )
    notes = [why, clean(found.get("note"))]
    return found["files"], "; ".join(filter(None, notes)) or None


def files(
    run: RunId,
    name: str | None = None,
    /,
    *,
    task: TaskId = None,
    download: Path | None = None,
) -> int:
    """List the supporting files of a run, even while the run is executing.

    If a name is given, show or download that file.

    Parameters
    ----------
    name
        show this file; default: list all files
    download
        the folder into which the file is downloaded, as a new file
    """
    if name is None and download is not None:
        raise WrongUsage(
            "--download needs the name of a file",
            f"crawlctl files {run} NAME --download FOLDER, or all files: crawlctl export {run} "
            "--download FOLDER",
        )
    with current().gateway() as gateway:
        rows, note = files_of(gateway, run, task)
        names = [row["name"] for row in rows]
        if name is None:
            empty = f"run {run} has no supporting files"
            document = {"run_id": run, "files": rows, "note": note}
            emit(
                document,
                names=names,
                table=lambda: show_rows(rows, tables.FILES, empty=empty),
                rows=rows,
            )
            if note:
                say(note)
            if rows:
                say(f"next: crawlctl files {run} NAME · crawlctl items {run}")
            return Exit.DONE
        if name not in names:
            raise CommandFailed(
                Exit.NOT_FOUND, f"run {run} has no file {name!r}", None, f"crawlctl files {run}"
            )
        with closing(gateway.file(run, name)) as pieces:
            if download is None:
                return _show_file(run, name, pieces)
            target = download / os.path.basename(name)
            document = {
                "run_id": run,
                "name": name,
                "file": str(target),
                "bytes": fetch(pieces, target),
            }
    shown = f"{clean(target)}: {number(document['bytes'])} bytes"
    emit(document, names=[target], table=lambda: print(shown))
    return Exit.DONE


def _show_file(run: int, name: str, pieces: Iterator[bytes]) -> int:
    text = ""
    for piece in codecs.iterdecode(pieces, "utf-8", "replace"):
        text += piece
        if len(text) > SHOWN_MAX:
            break
    whole, text = len(text) <= SHOWN_MAX, text[:SHOWN_MAX]
    shown = clean(text.replace("\r\n", "\n"), lines=True)
    document = {"run_id": run, "name": name, "text": text, "whole": whole}
    emit(
        document,
        names=[name],
        table=lambda: print(shown, end="" if shown.endswith("\n") or not shown else "\n"),
    )
    if not whole:
        say(
            f"… only the beginning is shown; the whole file: crawlctl files {run} {clean(name)} "
            "--download ."
        )
    return Exit.DONE


# --- export ---------------------------------------------------------------------------------------


def export(
    run: RunId,
    /,
    *,
    resend: bool = False,
    only: Literal["event", "files"] | None = None,
    attempt: int | None = None,
    download: Path | None = None,
) -> int:
    """Show the exports and deliveries of a run; send them again, or download the archive.

    A download is checked against the recorded SHA-256. The file gets its final name only when it is
    complete.

    Parameters
    ----------
    resend
        send event and files again
    only
        with --resend: send only this again
    attempt
        attempt of the run; default: the current one
    download
        the folder into which the archive is downloaded, as a new file
    """
    if resend and download is not None:
        raise WrongUsage("--resend and --download cannot be combined", "give one of them")
    if only is not None and not resend:
        raise WrongUsage("--only needs --resend", f"crawlctl export {run} --resend")
    with current().gateway() as gateway:
        if resend:
            body = {"event": only != "files", "files": only != "event", "attempt": attempt}
            answer = gateway.post(RUN.path(run, "/export"), body)
            note = [("note", answer["note"])] if answer.get("note") else []
            lines_of = [("run", run), ("status", status_word(answer)), *note]
            emit(answer, names=[run], table=lambda: show_facts(lines_of))
            say(f"next: crawlctl export {run}")
            return Exit.DONE
        found = gateway.run(run)
        if download is None:
            return _show(found, attempt)
        record = wanted_export(found, attempt)
        target = download / f"run-{run}-attempt-{record['attempt']}-supporting-files.zip"
        say(f"downloading {number(record.get('bytes'))} bytes")
        size = fetch(
            gateway.archive(run, int(record["attempt"])), target, str(record.get("sha256") or "")
        )
    facts = {"file": str(target), "bytes": size, "sha256": record.get("sha256")}
    shown = {**facts, "bytes": number(size)}
    document = {"run_id": run, "attempt": record["attempt"], **facts}
    emit(document, names=[target], table=lambda: show_facts(list(shown.items())))
    return Exit.DONE


def _show(run: Document, attempt: int | None) -> int:
    run_id = run.get("run_id")
    exports = _of_attempt(run.get("exports"), attempt)
    deliveries = _of_attempt(run.get("deliveries"), attempt)

    def table() -> None:
        show_rows(exports, tables.EXPORTS, empty=f"nothing was exported for run {run_id} yet")
        if exports and deliveries:
            print()
        show_rows(deliveries, tables.DELIVERIES, empty="no event was delivered yet")

    document = {"run_id": run_id, "exports": exports, "deliveries": deliveries}
    emit(
        document, names=[export.get("url") for export in exports if export.get("url")], table=table
    )
    if any(row.get("status") == "failed" for row in (*exports, *deliveries)):
        say(f"next: crawlctl export {run_id} --resend")
    elif any(export.get("url") for export in exports):
        say(f"next: crawlctl export {run_id} --download .")
    return Exit.DONE


def _of_attempt(rows: Any, attempt: int | None) -> list[dict[str, Any]]:
    return [row for row in rows or () if attempt is None or row.get("attempt") == attempt]


def wanted_export(run: Document, attempt: int | None) -> dict[str, Any]:
    """Return the export record of the archive to download.

    Raises ``CommandFailed`` if there is no archive.
    """
    run_id = run.get("run_id")
    known = sorted(
        _of_attempt(run.get("exports"), attempt), key=lambda row: int(row.get("attempt") or 0)
    )
    ready = [row for row in known if row.get("url") and row.get("sha256")]
    if ready:
        return ready[-1]
    which = f"run {run_id}" + (f" attempt {attempt}" if attempt is not None else "")
    if not known:
        raise CommandFailed(
            Exit.NOT_FOUND, f"nothing was exported for {which}", None, f"crawlctl export {run_id}"
        )
    why = f"its export is {known[-1].get('status')}" + (
        f": {known[-1]['error']}" if known[-1].get("error") else ""
    )
    raise CommandFailed(
        Exit.NOT_IN_THIS_STATE,
        f"{which} has no archive",
        why,
        f"crawlctl export {run_id} --resend --only files",
    )


# --- downloads ------------------------------------------------------------------------------------


def fetch(pieces: Iterable[bytes], target: Path, sha256: str | None = None) -> int:
    """Write ``pieces`` to the new file ``target``, and return their size. The pieces are first
    written to a private file next to the target. That file is renamed when it is complete and its
    checksum is correct.

    If an error occurs, no file is left. Raises ``CommandFailed`` if the target exists, the folder
    cannot be written to, or the checksum is wrong.
    """
    if target.exists() or target.is_symlink():
        raise _exists_already(target)
    # Use a short name, because the target's name may already have the maximum length.
    draft = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        size = _write(pieces, draft, target.name, sha256)
        _publish(draft, target)
    except OSError as error:
        raise CommandFailed(
            Exit.ERROR,
            f"{clean(target)} cannot be written",
            error.strerror or str(error),
            "free some space, or choose another folder",
        ) from None
    finally:
        with suppress(OSError):
            draft.unlink()
    return size


def _exists_already(target: Path) -> CommandFailed:
    fix = "move it away, or choose another folder"
    return CommandFailed(Exit.NOT_IN_THIS_STATE, f"{clean(target)} already exists", None, fix)


def _write(pieces: Iterable[bytes], draft: Path, name: str, sha256: str | None) -> int:
    digest = hashlib.sha256()
    size = 0
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        if sha256 is not None and digest.hexdigest() != sha256.lower():
            raise CommandFailed(
                Exit.ERROR,
                f"{name} differs from the exported archive",
                f"SHA-256 of the {size:,} received bytes is {digest.hexdigest()}, the recorded one "
                f"is {sha256}",
                "try again; if the error persists, make a new archive: crawlctl export RUN "
                "--resend "
                "--only files",
            )
        file.flush()
        os.fsync(file.fileno())
    # The complete file gets the default permissions of a new file.
    mask = os.umask(0)
    os.umask(mask)
    draft.chmod(0o666 & ~mask)
    return size


def _publish(draft: Path, target: Path) -> None:
    """Give the file its final name.

    Raises ``OSError``, and ``CommandFailed`` if this name is in use by now.
    """
    try:
        try:
            os.link(draft, target)
        except FileExistsError:
            raise
        except OSError:  # the file system has no hard links
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            draft.replace(target)
    except FileExistsError:
        raise _exists_already(target) from None
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

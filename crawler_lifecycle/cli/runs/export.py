"""``crawlctl export``: shows what was delivered of a run, sends it again, downloads the archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import Document, clean, emit, number, show_facts, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import Session, current
from crawler_lifecycle.cli.states import status_word

from . import tables
from .downloads import fetch
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
    lines = [("run", str(run)), ("status", status_word(answer)), ("note", clean(answer.get("note")))]
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

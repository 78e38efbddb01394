"""``crawlctl crawler``: entries of the database, and their versions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.inputs import filled
from crawler_lifecycle.cli.output import as_yaml, clean, emit, emit_list, say_note, show_facts
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import By, Limit, Project
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.features.canaries.domain.canary import Judge
from crawler_lifecycle.subjects import ENTRY, ENTRY_VERSIONS, Document

from .files import read_file

Name = Annotated[str, Parameter(help="the crawler's name")]
Number = Annotated[int, Parameter(help="the number of the version")]


def set_entry(
    name: Name,
    /,
    *,
    file: Annotated[Path | None, Parameter(name=("--file", "-f"))] = None,
    image: str | None = None,
    package: str | None = None,
    note: str | None = None,
    canary: float | None = None,
    canary_runs: int | None = None,
    judge: list[Judge] | None = None,
    project: Project = None,
    by: By = None,
) -> None:
    """Create a crawler in the database, or change it. It applies to the next run.

    Parameters
    ----------
    file
        the whole entry as YAML or JSON, with the keys of a catalogue file; - is standard input
    image
        the image with the code, such as registry/shop@sha256:…
    package
        the deployed package with the code
    note
        why the entry changes
    canary
        the share of new runs that try the change before it applies to all, such as 0.1
    canary_runs
        the number of ended runs after which it is judged (default: 3)
    judge
        what the runs are judged by in addition to expect (default: all)
    """
    changes = filled({"image": image, "package": package})
    if file is None and not changes:
        raise WrongUsage(
            "nothing to set; give --file, --image or --package", "crawlctl crawler set --help"
        )
    with current().gateway() as gateway:
        entry = _before(gateway, name) if file is None else _entry_of(file)
        tried = {"canary": canary, "canary_runs": canary_runs, "judge": judge}
        body = {"entry": {**entry, **changes}, "note": note, "project": project, **tried}
        found = gateway.put(_path(name), {**filled(body), "requested_by": by or user()})
    _show(found)


def _before(gateway: Gateway, name: str) -> Mapping[str, Any]:
    """Return the present entry; an empty one if there is none."""
    try:
        found: Mapping[str, Any] = gateway.get(_path(name))["document"]
    except CommandFailed as failure:
        if failure.code is not Exit.NOT_FOUND:
            raise
        return {}
    return found


def _entry_of(file: Path) -> Mapping[str, Any]:
    found = read_file(file)
    if len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    if len(found) != 1 or not isinstance(found[0], dict):
        raise WrongUsage(f"--file {file}: give exactly one entry", "crawlctl apply sets several")
    entry: Mapping[str, Any] = found[0]
    return entry


def history(name: Name, /, *, limit: Limit = 50) -> None:
    """List the versions of a crawler in the database, newest first."""
    with current().gateway() as gateway:
        found = gateway.get(_path(name, "/history"), page_size=min(limit, 200))
    rows = [{**row, "current": row["number"] == found["current"]} for row in found["versions"]]
    emit_list("versions", rows, ENTRY_VERSIONS, name="number", empty="no versions")


def diff(name: Name, /, old: Number | None = None, new: Number | None = None) -> None:
    """Show what differs between two versions: by default, the version in use and the one before."""
    with current().gateway() as gateway:
        if new is None:
            new = int(gateway.get(_path(name))["number"])
        first = _version(gateway, name, new - 1 if old is None else old)
        second = _version(gateway, name, new)
    lines = differences(
        f"{name} {first['number']}",
        first["document"],
        f"{name} {second['number']}",
        second["document"],
    )
    document = {"old": first, "new": second}
    emit(document, names=[name], table=lambda: print("\n".join(lines) or "They are the same."))


def differences(
    old_title: str, old: Mapping[str, Any] | None, new_title: str, new: Mapping[str, Any] | None
) -> list[str]:
    """Return the lines of a unified diff of two documents, which may be absent."""
    found = difflib.unified_diff(_lines(old), _lines(new), old_title, new_title, lineterm="", n=2)
    return [clean(line) for line in found]


def _lines(document: Mapping[str, Any] | None) -> list[str]:
    return [] if document is None else as_yaml(dict(sorted(document.items()))).splitlines()


def _version(gateway: Gateway, name: str, number: int) -> Document:
    found = gateway.get(_path(name, "/history"), before=number + 1, page_size=1)["versions"]
    if not found or found[0]["number"] != number:
        raise CommandFailed(
            Exit.NOT_FOUND,
            f"crawler {clean(name)} has no version {number}",
            None,
            f"crawlctl crawler history {clean(name)}",
        )
    document: Document = found[0]
    return document


def use(name: Name, number: Number, /, *, by: By = None) -> None:
    """Use a version of a crawler. It applies to the next run."""
    body = {"number": number, "requested_by": by or user()}
    with current().gateway() as gateway:
        _show(gateway.post(_path(name, "/use"), body))


def rollback(name: Name, /, *, by: By = None) -> None:
    """Use the version before the one in use, except versions that only a canary tried. It applies
    to the next run. The crawler of a package goes back with its package.
    """
    with current().gateway() as gateway:
        _show(gateway.post(_path(name, "/rollback"), {"requested_by": by or user()}))


def delete(name: Name, /) -> None:
    """Delete a crawler from the database. Its runs and versions stay."""
    with current().gateway() as gateway:
        found = gateway.delete(_path(name))
    emit(found, names=[name], table=lambda: print(clean(f"crawler {name} is deleted")))


def _path(name: str, what: str = "") -> str:
    return f"/v1/crawlers/{quote(name, safe='')}{what}"


def _show(found: Document) -> None:
    emit(found, names=[found["name"]], table=lambda: show_facts(ENTRY.known(found)))
    say_note(found)
    say(f"next: crawlctl crawler diff {found['name']} · crawlctl start {found['name']}")

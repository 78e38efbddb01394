"""``crawlctl apply``: make an installation the same as a folder of files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from cyclopts import Parameter
from pydantic import BaseModel, ValidationError

from crawler_lifecycle.adapters.catalogue import read_document
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.output import clean, emit
from crawler_lifecycle.cli.problems import CommandFailed, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import By, Project
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.schedules.gateway.commands import PutSchedule
from crawler_lifecycle.features.sites.gateway.commands import PutSite
from crawler_lifecycle.features.webhooks.domain.definition import shown
from crawler_lifecycle.features.webhooks.gateway.commands import PutWebhook
from crawler_lifecycle.gateway.pools import PutPool
from crawler_lifecycle.settings import PoolLimits

from .entries import differences
from .files import KINDS, Definition, definitions_in

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Present:
    """A definition of the installation."""

    document: Mapping[str, Any]
    project: str | None
    """``None`` if it belongs to no project."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the files and the installation."""

    kind: DefinitionKind
    name: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    given: Mapping[str, Any]
    """The definition in the file; empty for one that is deleted."""

    @property
    def action(self) -> str:
        """The word for what happens."""
        return "create" if self.old is None else "delete" if self.new is None else "change"


class DefinitionKind(ABC):
    """A kind of definitions: how the API lists, compares and changes them."""

    plural: str
    has_projects = True
    """Whether a change is made in a project: any other definition is known by its name alone."""

    @property
    def noun(self) -> str:
        """The word for one of them."""
        return self.plural[:-1]

    def present(self, gateway: Gateway) -> Mapping[str, Present]:
        """Return those that ``apply`` may change, by name."""
        rows = gateway.rows(f"/v1/{self.plural}")
        return {row["name"]: Present(row["definition"], row["project"]) for row in rows}

    @abstractmethod
    def complete(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a definition with its defaults, so that two can be compared.

        Raises ``InvalidRequest`` or ``ValidationError``.
        """

    def present_form(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a definition of the installation as ``complete`` does; unchanged if this build
        cannot read it.
        """
        try:
            return self.complete(document)
        except (InvalidRequest, ValidationError):
            return document

    def body(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body that sets a definition."""
        return _without_name(self.plural, document)

    def path(self, name: str) -> str:
        """Return the path of one of them in the API."""
        return f"/v1/{self.plural}/{quote(name, safe='')}"


class CrawlerDefinitions(DefinitionKind):
    """Crawlers of the database that do not come from packages."""

    plural = "crawlers"

    def present(self, gateway: Gateway) -> Mapping[str, Present]:
        entries = gateway.get("/v1/entries")["entries"]
        return {
            entry["name"]: Present(entry["document"], entry["project"])
            for entry in entries
            if entry["package"] is None
        }

    def complete(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        read_document(document)
        return document

    def body(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"entry": document}


class Sites(DefinitionKind):
    """Limits of sites that people set."""

    plural = "sites"
    has_projects = False

    def present(self, gateway: Gateway) -> Mapping[str, Present]:
        rows = gateway.rows("/v1/sites", show="limited")
        return {
            row["site"]: Present(row["limits"], None) for row in rows if row["origin"] == "people"
        }

    def complete(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return _read(PutSite, self.plural, document).limits().to_json()


class PoolDefinitions(DefinitionKind):
    """Pools of the database."""

    plural = "pools"
    has_projects = False

    def present(self, gateway: Gateway) -> Mapping[str, Present]:
        rows = gateway.get("/v1/pools")["pools"]
        return {
            row["name"]: Present(
                {name: row[name] for name in PoolLimits.model_fields}, row["project"]
            )
            for row in rows
            if row["origin"] == "people"
        }

    def complete(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return asdict(_read(PutPool, self.plural, document).pool())


class Schedules(DefinitionKind):
    """Schedules, whether they are paused or not."""

    plural = "schedules"

    def complete(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        spec = _read(PutSchedule, self.plural, document).spec()
        # The installation's definition comes from JSON, where words are plain text.
        complete: Mapping[str, Any] = json.loads(json.dumps(spec.document()))
        return complete


class Webhooks(DefinitionKind):
    """Webhooks, whether they are paused or not."""

    plural = "webhooks"

    def complete(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        # The API hides the secret end of a chat's address, so that end is not compared.
        return shown(_read(PutWebhook, self.plural, document).spec().document())


#: In the order in which they are created, because crawlers name pools, and schedules name both.
ALL = (PoolDefinitions(), CrawlerDefinitions(), Sites(), Schedules(), Webhooks())
assert tuple(kind.plural for kind in ALL) == tuple(KINDS)


def apply(
    *,
    file: Annotated[Path, Parameter(name=("--file", "-f"))],
    prune: bool = False,
    dry_run: bool = False,
    project: Project = None,
    by: By = None,
) -> None:
    """Make pools, crawlers, sites, schedules and webhooks the same as the definitions in files.

    A second call changes nothing. If a call is interrupted, the next one does the rest.

    Parameters
    ----------
    file
        a folder with YAML or JSON files, or one file
    prune
        also delete what the files do not define, of each kind that they name; with --project, only
        what belongs to the project
    dry_run
        only show what would change
    """
    declared = definitions_in(file)
    wanted = {kind.plural: _checked(kind, declared.get(kind.plural, {})) for kind in ALL}
    with current().gateway() as gateway:
        changes: list[Change] = []
        same = 0
        for kind in ALL:
            if kind.plural not in declared:
                continue
            present = _of_project(kind, kind.present(gateway), project, prune=prune)
            found = list(_changes(kind, declared[kind.plural], wanted[kind.plural], present))
            same += len(wanted[kind.plural]) - len(found)
            changes += found
            if prune:
                changes += [
                    Change(kind, name, found.document, None, {})
                    for name, found in sorted(present.items())
                    # Other projects use what belongs to no project, too.
                    if name not in wanted[kind.plural] and project in (None, found.project)
                ]
        # What is deleted may be named by what else is deleted, so this is the reverse order.
        deleted = [change for change in changes if change.new is None]
        changes = [change for change in changes if change.new is not None] + deleted[::-1]
        if current().output == "table":
            _show(changes)
        if not dry_run:
            for change in changes:
                _carry_out(gateway, change, project, by or user())
    words = "would change" if dry_run else "changed"
    document = {
        "changes": [
            {"action": change.action, "kind": change.kind.noun, "name": change.name}
            for change in changes
        ],
        "unchanged": same,
        "dry_run": dry_run,
    }
    line = f"{len(changes)} {words}, {same} unchanged"
    emit(document, names=[change.name for change in changes], table=lambda: print(line))


def _without_name(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != KINDS[kind]}


def _read(model: type[Body], kind: str, document: Mapping[str, Any]) -> Body:
    # The body of a request is read from JSON, too.
    return model.model_validate_json(json.dumps(_without_name(kind, document)))


def _checked(
    kind: DefinitionKind, definitions: Mapping[str, Definition]
) -> dict[str, Mapping[str, Any]]:
    """Return the complete definitions by name. Raises ``WrongUsage``, which names the file."""
    found = {}
    for name, definition in definitions.items():
        where = f"{definition.file}: {kind.noun} {clean(name)}"
        try:
            found[name] = kind.complete(definition.document)
        except InvalidRequest as error:
            raise WrongUsage(f"{where}: {error}") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            # A rule about several fields names them itself.
            field = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
            message = first["msg"].removeprefix("Value error, ")
            raise WrongUsage(f"{where}: {field}{message}") from None
    return found


def _of_project(
    kind: DefinitionKind, present: Mapping[str, Present], project: str | None, *, prune: bool
) -> Mapping[str, Present]:
    """Return those of one project. Raises ``WrongUsage`` if it is not clear which one is pruned."""
    if not kind.has_projects:
        return present
    projects = {found.project for found in present.values()} - {None}
    if project is not None:
        return {n: found for n, found in present.items() if found.project in (project, None)}
    if prune and len(projects) > 1:
        raise WrongUsage(
            f"--prune: there are {kind.plural} of several projects, and the token may delete all",
            "give --project",
        )
    return present


def _changes(
    kind: DefinitionKind,
    declared: Mapping[str, Definition],
    wanted: Mapping[str, Mapping[str, Any]],
    present: Mapping[str, Present],
) -> Iterator[Change]:
    for name, new in wanted.items():
        found = present.get(name)
        old = None if found is None else kind.present_form(found.document)
        if old != new:
            yield Change(kind, name, old, new, declared[name].document)


def _carry_out(gateway: Gateway, change: Change, project: str | None, by: str) -> None:
    kind = change.kind
    path = kind.path(change.name)
    try:
        if change.new is None:
            gateway.delete(path)
            return
        body = {**kind.body(change.given), "requested_by": by}
        if project is not None and kind.has_projects:
            body["project"] = project
        gateway.put(path, body)
    except CommandFailed:
        say(f"{kind.noun} {clean(change.name)} was not applied; what precedes it was")
        raise


def _show(changes: list[Change]) -> None:
    for change in changes:
        print(f"{change.action} {change.kind.noun} {clean(change.name)}")
        for line in differences("installation", change.old, "file", change.new)[2:]:
            print(f"  {line}")

"""Routes of the entries of the catalogue that are in the database."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.features.canaries.gateway.fields import CanaryFields
from crawler_lifecycle.gateway.access.operations import may, signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import Choice
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.requests import SignedBody
from crawler_lifecycle.ports.entries import CatalogueEntry, EntryVersion
from crawler_lifecycle.web.problems import JsonBody

from .commands import EntryCommands

_Name = Annotated[str, Path(max_length=63)]
_Number = Annotated[int, Field(ge=1, le=INT_MAX)]


class PutCrawler(CanaryFields, SignedBody):
    """Body of ``PUT /v1/crawlers/{crawler}``."""

    entry: dict[str, Any]
    """The entry, with the keys of an entry in a catalogue file."""
    note: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The reason for the change."""
    project: str | None = None
    """Only a caller with all projects may name a project other than its own."""


class UseCrawlerVersion(SignedBody):
    """Body of ``POST /v1/crawlers/{crawler}/use``."""

    number: _Number


class HistoryFilters(Choice):
    """Parameters of ``GET /v1/crawlers/{crawler}/history``."""

    before: _Number | None = None
    """Only versions with smaller numbers."""
    page_size: Annotated[int, Field(ge=1, le=200)] = 50


@dataclasses.dataclass(frozen=True, slots=True)
class ChangedEntry(CatalogueEntry):
    """An entry after a command."""

    changed: bool
    note: str


class EntryHistory(BaseModel):
    """Versions of an entry, newest first."""

    current: int | None
    """The version in use; null if the entry was deleted."""
    versions: list[EntryVersion]


class EntryList(BaseModel):
    """The entries of the database, by name."""

    entries: list[CatalogueEntry]


T = TypeVar("T", CatalogueEntry, EntryVersion)
_Put = Annotated[PutCrawler, Depends(JsonBody(PutCrawler))]
_Use = Annotated[UseCrawlerVersion, Depends(JsonBody(UseCrawlerVersion))]
_RollBack = Annotated[SignedBody, Depends(JsonBody(SignedBody, optional=True))]


def _shown(entry: T) -> T:
    """Return the entry, without the values of variables if the caller may not change it, because
    some people put passwords into variables.
    """
    env = entry.document.get("env")
    if not env or may("putCrawler"):
        return entry
    return dataclasses.replace(entry, document={**entry.document, "env": dict.fromkeys(env, "…")})


def add_entries(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of entries."""
    entries = gateway.store.entries
    packages = gateway.store.packages

    def check_package(name: str) -> None:
        packages.check_owner(name)

    commands = EntryCommands(entries, gateway.crawlers, gateway.owned, check_package)

    def answer(entry: CatalogueEntry, changed: bool, note: str) -> ChangedEntry:
        if changed:
            present_call().about.append(("crawler", entry.name, note, True))
        return ChangedEntry(**dataclasses.asdict(entry), changed=changed, note=note)

    @app.get("/v1/entries", **documents(EntryList))
    def list_entries(request: Request) -> Response:
        """All entries that are in the database, by name, as people and packages set them."""
        return conditional(
            request, EntryList(entries=[_shown(entry) for entry in entries.list_entries()])
        )

    @app.get("/v1/crawlers/{crawler}")
    async def get_crawler(crawler: _Name) -> CatalogueEntry:
        """One entry of the database, as a person or package set it.

        A caller that may not change entries does not see the values of their variables.
        """
        return _shown(await commands.find(crawler))

    @app.put("/v1/crawlers/{crawler}")
    async def put_crawler(crawler: _Name, body: _Put) -> ChangedEntry:
        """Create an entry, or replace it. It applies to the next run, or as a canary for a share of
        the runs until it is judged.

        A repeat with the same entry changes nothing. Entries of a catalogue file cannot be changed
        here.
        """
        body = signed(body)
        canary = body.settings()
        entry, changed = await commands.put(
            crawler, body.entry, body.requested_by, body.note, body.project, canary
        )
        note = f"version {entry.number}" if changed else "Nothing changed."
        if changed and canary is not None and entry.document != {**body.entry, "name": crawler}:
            note = f"{100 * canary.share:g} % of the runs try the new version."
        return answer(entry, changed, note)

    @app.post("/v1/crawlers/{crawler}/use")
    async def use_crawler_version(crawler: _Name, body: _Use) -> ChangedEntry:
        """Use another version of an entry, such as an older one. It applies to the next run."""
        await commands.check_no_file(crawler)
        by = signed(body).requested_by
        entry, changed = await run_in_threadpool(entries.use_entry, crawler, body.number, by)
        note = f"version {entry.number} is in use" if changed else "It was already in use."
        return answer(entry, changed, note)

    @app.post("/v1/crawlers/{crawler}/rollback")
    async def roll_back_crawler(crawler: _Name, body: _RollBack) -> ChangedEntry:
        """Use the version of an entry that was in use before the present one. It applies to the
        next run.

        Versions that a canary tried and did not accept are skipped. For an entry of a package, the
        package goes back to its version before, with all its crawlers.
        """
        await commands.check_no_file(crawler)
        by = signed(body).requested_by

        def roll_back() -> ChangedEntry:
            known = entries.get_entry(crawler)
            if known is None or known.package is None:
                entry = entries.roll_back(crawler, by)
                return answer(entry, True, f"version {entry.number} is in use")
            used = packages.use_version(known.package, None, by).version
            note = f"version {used.version} of package {used.package} is in use"
            return answer(entries.get_entry(crawler) or known, True, note)

        return await run_in_threadpool(roll_back)

    @app.get("/v1/crawlers/{crawler}/history", **documents(EntryHistory))
    def list_crawler_history(
        crawler: _Name, filters: Annotated[HistoryFilters, Query()], request: Request
    ) -> Response:
        """The versions of an entry, newest first. Versions of a deleted entry stay."""
        versions = entries.entry_history(crawler, filters.before, filters.page_size)
        if not versions and filters.before is None:
            raise commands.unknown(crawler)
        entry = entries.get_entry(crawler)
        current = None if entry is None else entry.number
        return conditional(
            request,
            EntryHistory(current=current, versions=[_shown(version) for version in versions]),
        )

    @app.delete("/v1/crawlers/{crawler}")
    async def delete_crawler(crawler: _Name) -> ChangedEntry:
        """Delete an entry. Its runs, and its versions for their resumes, stay."""
        found = await run_in_threadpool(entries.delete_entry, crawler)
        if found is None:
            raise commands.unknown(crawler)
        return answer(found, True, "deleted")

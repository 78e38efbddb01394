"""Commands about the entries of the catalogue that are in the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.adapters.catalogue import read_document
from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import ReservedNames
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.features.canaries.domain.canary import CanarySettings
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.ports.entries import CatalogueEntry
from crawler_lifecycle.web.problems import Problem

from ..store.entries import EntryStore


@dataclass(eq=False)
class EntryCommands:
    """The commands about one entry. They raise ``Problem``, or an error of the domain.

    ``check_package`` raises ``DuplicateRequest`` for a package of another project.
    """

    entries: EntryStore
    crawlers: Crawlers
    owned: ReservedNames
    check_package: Callable[[str], None]

    async def find(self, name: str) -> CatalogueEntry:
        """Return an entry. Raises ``Problem`` 404, and 409 for an entry of the file."""
        entry = await run_in_threadpool(self.entries.get_entry, name)
        if entry is None:
            await self.check_no_file(name)
            raise self.unknown(name)
        return entry

    async def put(
        self,
        name: str,
        document: Mapping[str, Any],
        by: str | None,
        note: str | None,
        project: str | None,
        canary: CanarySettings | None,
    ) -> tuple[CatalogueEntry, bool]:
        """Create an entry, or give it this document, with ``canary`` on trial. Returns it, and
        whether anything changed.
        """
        if document.get("name", name) != name:
            raise refusal("entry.name", document["name"], f"give {name}, or leave it out")
        document = {**document, "name": name}
        crawler = read_document(document, self.owned)
        if only() is not None:
            check_of_project(crawler)
            if crawler.package is not None:
                await run_in_threadpool(self.check_package, crawler.package)
        await self.check_no_file(name)
        set_entry = partial(self.entries.set_entry, canary=canary)
        return await run_in_threadpool(set_entry, name, document, by, note, project)

    async def check_no_file(self, name: str) -> None:
        """Raise ``Problem`` 409 for an entry of the scheduler service's catalogue file."""
        if name in await self.crawlers.of_file():
            raise Problem(
                409,
                "crawler_of_file",
                f"crawler: {name!r} is an entry of the catalogue file (LIFECYCLE_CATALOGUE); "
                "change it there, or choose another name",
            )

    def unknown(self, name: str) -> Problem:
        """Return the problem 404 about a name that the database does not have."""
        return Problem(
            404,
            "crawler_not_found",
            f"crawler {name!r} is not in the database; GET /v1/crawlers lists all crawlers",
        )


def check_of_project(crawler: CrawlerDefinition) -> None:
    """Raise ``InvalidRequest`` if an entry uses what all projects of an installation share: its
    secrets, its volumes and its accounts. Only a caller with access to all projects may name them.
    """
    pod = crawler.kubernetes
    shared = {
        "secrets": crawler.secrets,
        "kubernetes.volumes": pod.volumes,
        "kubernetes.sidecars": pod.sidecars,
        "kubernetes.pull_secrets": pod.pull_secrets,
        "kubernetes.service_account": pod.service_account,
    }
    for key, value in shared.items():
        if value:
            raise InvalidRequest(
                f"{key}: an entry of one project may not have it; ask the operator to set this "
                "entry, or to add it to the catalogue file"
            )

"""Commands on packages: deploy a version, make it current, delete it."""

from __future__ import annotations

from dataclasses import replace

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.code import INSPECTION_S
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.names import INSPECTION_WORKFLOW
from crawler_lifecycle.features.catalogue.store.entries import EntryStore
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import refused, unavailable

from ..compose import follow
from ..domain.version import NOTE_MAX, PackageVersion, check_package, check_version
from ..ports import CodeStore, Inspection, InspectionOrder
from ..store.packages import NewVersion, PackageStore
from .uploads import ReceivedZip, Uploads


class Deployments:
    """Changes packages. The entries of the catalogue follow: they are those of the spiders in the
    current version.
    """

    def __init__(
        self, packages: PackageStore, entries: EntryStore, code: CodeStore, workflows: Workflows
    ) -> None:
        self._packages = packages
        self._entries = entries
        self._code = code
        self._workflows = workflows
        self.uploads = Uploads()

    async def deploy(
        self, new: NewVersion, received: ReceivedZip, *, force: bool = False
    ) -> tuple[PackageVersion, str, bool]:
        """Deploy a zip as a version, and make it current or begin its canary.

        ``new`` lacks what the zip shows. Returns the version, a sentence, and whether it is new.
        With ``force``, a Scrapy project is deployed even if its spiders cannot be found. Raises
        ``Problem`` and ``LifecycleError``.
        """
        check_package(new.package)
        check_version(new.version)
        digest = received.digest
        new = replace(new, digest=digest, size=received.size, files=received.files)
        same = await run_in_threadpool(self._packages.check_version, new)
        # Also a known version is stored again, in case its zip was lost.
        await run_in_threadpool(self._code.put, digest, received.file)
        if same is not None:
            return same, "It was deployed before.", False
        if received.scrapy:
            inspected = await self._inspect(digest, force)
            new = replace(new, spiders=inspected.spiders, note=inspected.problem)
        found, fresh = await run_in_threadpool(self._packages.add_version, new)
        if not found.current and new.canary is not None:
            return found, f"{100 * new.canary.share:g} % of the runs try it.", fresh
        taken = await run_in_threadpool(
            follow, self._packages, self._entries, found.package, new.by
        )
        return found, f"It is current now.{taken}", fresh

    def use_version(self, name: str, version: str, by: str | None) -> tuple[PackageVersion, bool]:
        """Make a version current. Returns it, and whether another one was.

        Raises ``NotInThisState`` if there is no such version.
        """
        used, changed = self._packages.use_version(name, version, by)
        follow(self._packages, self._entries, name, by)
        return used, changed

    def delete_version(self, name: str, version: str, by: str | None) -> PackageVersion | None:
        """Delete a version; ``None`` if there is none.

        Raises ``NotInThisState`` for the current version of a package that has others.
        """
        deleted = self._packages.delete_version(name, version)
        if deleted is not None and deleted.current:
            self._entries.sync_package(name, [], deleted.project, by)
        return deleted

    def delete_package(self, name: str, by: str | None) -> int:
        """Delete a package with all versions, and return how many it had."""
        last = self._packages.find_version(name)
        versions = self._packages.delete_package(name)
        if last is not None:
            self._entries.sync_package(name, [], last.project, by)
        return versions

    async def _inspect(self, digest: str, force: bool) -> Inspection:
        """Return the spiders of a project. Raises ``Problem`` 422 and 503."""
        order = InspectionOrder(digest)
        name = f"crawl-inspection/{digest}"
        try:
            found = await self._workflows.result(
                INSPECTION_WORKFLOW, order, name, INSPECTION_S, Inspection
            )
        except TemporalUnavailable as error:
            text = f"no worker with the role user-code has inspected the project: {error}"
            if not force:
                raise unavailable("not_inspected", f"{text}; try again, or give force") from None
            return Inspection(problem=text[:NOTE_MAX])
        if found.problem is None:
            return found
        if not force:
            raise refused("body", f"the project cannot be imported: {found.problem}")
        last = found.problem.strip().rpartition("\n")[2]
        return Inspection(problem=last[:NOTE_MAX])

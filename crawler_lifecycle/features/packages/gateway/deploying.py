"""The deploy of a version of a package."""

from __future__ import annotations

from dataclasses import replace

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.code import INSPECTION_S
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.names import INSPECTION_WORKFLOW
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import refused, unavailable

from ..domain.version import NOTE_MAX, PackageVersion, check_package, check_version
from ..ports import CodeStore, Inspection, InspectionOrder
from ..store.packages import NewVersion, PackageStore, VersionChange
from .uploads import ReceivedZip, Uploads


class Deployments:
    """Deploys versions of packages."""

    def __init__(self, packages: PackageStore, code: CodeStore, workflows: Workflows) -> None:
        self._packages = packages
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
            return same, "It was already deployed.", False
        if received.scrapy:
            inspected = await self._inspect(digest, force)
            new = replace(new, spiders=inspected.spiders, note=inspected.problem)
        change = await run_in_threadpool(self._packages.add_version, new)
        if not change.version.current and new.canary is not None:
            return change.version, f"{100 * new.canary.share:g} % of the runs try it.", change.fresh
        return change.version, f"It is now current.{_missing(change)}", change.fresh

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
            fix = "correct it, or give force"
            raise refused("body", f"the project cannot be imported; {fix}: {found.problem}")
        last = found.problem.strip().rpartition("\n")[2]
        return Inspection(problem=last[:NOTE_MAX])


def _missing(change: VersionChange) -> str:
    """Return a sentence about the spiders that got no entry, or an empty string."""
    if not change.without_entry:
        return ""
    return (
        " These spiders got no crawler, because another crawler has the name, or none can have it: "
        f"{', '.join(change.without_entry[:10])}; add an entry with package, spider and another "
        "name"
    )

"""scrapyd's projects: each package is one, with its versions and the spiders of its code.

One more project has the crawlers of the catalogue that belong to no package, as its spiders.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.features.packages.domain.version import PackageVersion
from crawler_lifecycle.features.packages.store.packages import PackageStore
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.ports.runs import RunRow

from .forms import refused, shown

#: The maximum number of packages in a list of projects.
PROJECTS_MAX = 10_000
_NOT_IN_VERSIONS = re.compile(r"[^A-Za-z0-9._+-]")


@dataclasses.dataclass(frozen=True)
class Projects:
    """Finds projects, versions and spiders. Raises ``Problem``."""

    home: str
    """The project with the crawlers that belong to no package."""
    crawlers: Crawlers
    packages: PackageStore

    async def names(self) -> list[str]:
        """Return the names of all projects."""
        found = await run_in_threadpool(self.packages.list_packages, 0, PROJECTS_MAX)
        return sorted({self.home, *(version.package for version in found)})

    async def versions(self, project: str) -> list[str]:
        """Return the versions of a project in the order in which they were deployed.

        The current one is the last, because clients take the last one for it.
        """
        found = await run_in_threadpool(self.packages.versions, package_of(project))
        if not found and project == self.home:
            return [await self.catalogue_version()]
        found.reverse()
        found.sort(key=lambda version: version.current)
        return [version.version for version in found]

    async def find(self, project: str, version: str | None) -> PackageVersion | None:
        """Return a version of a package, by default the current one. Return ``None`` for the
        project with the catalogue.
        """
        package = package_of(project)
        current = await run_in_threadpool(self.packages.find_version, package)
        if current is None and project != self.home:
            raise refused(
                f"project {shown(project)} not found; listprojects.json lists the projects"
            )
        if not version:
            return current
        if current is None:
            known = await self.catalogue_version()
            if version == known:
                return None
            advice = f"the version is now {known!r}: send it, or omit _version"
        else:
            found = await run_in_threadpool(
                self.packages.find_version, package, stored_version(version)
            )
            if found is not None:
                return found
            advice = "listversions.json lists the versions of the project"
        raise refused(f"version {shown(version)} not found; {advice}")

    async def catalogue_version(self) -> str:
        """Return a hash of the catalogue."""
        known = await self.crawlers.all()
        entries = [dataclasses.asdict(known[name]) for name in sorted(known)]
        return hashlib.sha256(json.dumps(entries, default=str).encode()).hexdigest()[:12]

    async def check(self, project: str | None) -> None:
        """Raise ``Problem`` if there is no such project."""
        if project is not None:
            await self.find(project, None)

    async def spiders(self, project: str, version: str | None) -> list[str]:
        """Return the spiders of a version of a project."""
        found = await self.find(project, version)
        names = set() if found is None else _names(found)
        if project == self.home:
            known = (await self.crawlers.all()).values()
            names |= {crawler.name for crawler in known if crawler.package is None}
        return sorted(names)

    async def crawler(self, project: str, spider: str, found: PackageVersion | None) -> str:
        """Return the name of the crawler for a spider. ``found`` is the version that executes."""
        known = await self.crawlers.all()
        place = (package_of(project), spider)
        own = [
            crawler.name
            for crawler in known.values()
            if (crawler.package, crawler.spider_name) == place
        ]
        if own:
            return spider if spider in own else min(own)
        if found is not None and spider in _names(found):
            raise refused(
                f"spider {shown(spider)} has no crawler, because it is not in the current version, "
                "or another crawler has its name; add an entry to the catalogue with package, "
                "spider and another name"
            )
        if project == self.home:
            return spider
        raise refused(
            f"spider {shown(spider)} not found; listspiders.json lists the spiders of the project"
        )

    def place_of(self, known: Mapping[str, CrawlerDefinition], row: RunRow) -> tuple[str, str]:
        """Return the project and the spider of a run; ``known`` are all crawlers."""
        crawler = known.get(row.crawler)
        if crawler is None or crawler.package is None:
            return self.home, row.crawler
        return crawler.package, crawler.spider_name


def _names(version: PackageVersion) -> set[str]:
    return {str(spider["name"]) for spider in version.spiders or ()}


def package_of(project: str) -> str:
    """Return the name of the package for a project. Names of packages have no upper case."""
    return project.lower()


def is_project(name: str, asked: str) -> bool:
    """Return whether a request that names a project means this one."""
    return name in (asked, package_of(asked))


def stored_version(version: str) -> str:
    """Return the name under which a version is stored.

    As with scrapyd, a character that it may not have becomes ``_``, such as the ``/`` in the name
    of a git branch.
    """
    return _NOT_IN_VERSIONS.sub("_", version)

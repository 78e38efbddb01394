"""Translates Scrapy Cloud's terms into ours: spiders, projects, units and outcomes (table in
docs/managers.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from crawler_lifecycle.domain.bounds import Bound, check_number, refusal
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.retries import IS_FINAL
from crawler_lifecycle.domain.run import RunRequest, Trigger
from crawler_lifecycle.domain.unknown import similar, suggest

from .manager import FAILED_OUTCOMES, Job

#: The bounds of a job's units.
UNITS = Bound(1, 1000, "units", whole=True, or_none=True)
#: Who ended the runs that are not retried: a person stopped them, or the service refused them.
_FINAL = (EndedBy.PERSON, EndedBy.SERVICE)
#: The outcomes that the service itself gives to FAILED runs. A failed crawler may report any
#: further outcome.
FAILED_HERE = frozenset(FAILED_OUTCOMES) | {
    "lost",
    "evicted",
    "interrupted",
    "timed_out",
    "start_timeout",
    "deploy_failed",
    "banned",
    "partial",
}
#: The maximum number of crawlers that an error names.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Cloud:
    """The settings of an installation for units and projects (``LIFECYCLE_USER_CODE__…``).

    Raises ``InvalidRequest`` for a unit that is not a quantity.
    """

    unit: Resources = field(default_factory=lambda: Resources(memory="1Gi"))
    projects: Mapping[str, str] = field(default_factory=dict)
    """The prefix of the names of a project's crawlers, by its number or alias."""

    def resources(self, units: int | None) -> Resources:
        """Return the resources for this many units. Raises ``InvalidRequest``.

        For ``None``, return empty resources, so that the resources of the crawler's entry apply.
        """
        if units is None:
            return Resources()
        check_number("units", units, UNITS)
        try:
            return Resources(
                cpu=_times(self.unit.cpu, units), memory=_times(self.unit.memory, units)
            )
        except InvalidRequest as error:
            raise InvalidRequest(f"units: {units} units are too many: {error}") from None

    def crawler(
        self,
        spider: str,
        project_id: str | None,
        catalogue: Iterable[CrawlerDefinition],
        problem: str | None = None,
    ) -> CrawlerDefinition:
        """Return the crawler with this name, or else the only crawler with this spider.

        With a ``project_id``, only the crawlers of this project are considered. Raises
        ``InvalidRequest`` for an unknown project, and for a spider that no crawler or several
        crawlers have, with the ``problem`` of the catalogue.
        """
        prefix = self._prefix(project_id)
        mine = [crawler for crawler in catalogue if crawler.name.startswith(prefix)]
        named = next((crawler for crawler in mine if crawler.name == prefix + spider), None)
        found = (
            [named]
            if named is not None
            else [crawler for crawler in mine if crawler.spider_name == spider]
        )
        if len(found) == 1:
            return found[0]
        where = f" in project {project_id!r:.80}" if project_id is not None else ""
        if not found:
            near = similar(prefix + spider, (crawler.name for crawler in mine))
            fix = (
                f"did you mean {near.removeprefix(prefix)}?"
                if near
                else "crawlctl crawler list shows all crawlers"
            )
            none = f"no crawler{where} has this name or this spider"
            text = f"spider: {spider!r:.120} is unknown; {none}"
            raise InvalidRequest("; ".join(filter(None, (text, fix, problem))))
        names = ", ".join(sorted(crawler.name for crawler in found)[:_NAMED_MAX])
        raise InvalidRequest(
            f"spider: {spider!r:.120} is unknown, because {len(found)} crawlers{where} have this "
            f"spider ({names}"
            f"{', …' if len(found) > _NAMED_MAX else ''}); name one of these crawlers"
        )

    def _prefix(self, project_id: str | None) -> str:
        if project_id is None:
            return ""
        prefix = self.projects.get(project_id)
        if prefix is None:
            advice = suggest(project_id, sorted(self.projects))
            fix = f"name one of LIFECYCLE_USER_CODE__PROJECTS, or leave it out; {advice}"
            raise refusal("project_id", project_id, fix)
        return prefix


def run_request_of(job: Job, crawler: CrawlerDefinition, cloud: Cloud, **more: Any) -> RunRequest:
    """Return the request of a job's run, with the extra fields ``more``.

    The request is the same for every try to begin the run.

    ``crawler`` is the crawler of the job (``Cloud.crawler``). Raises ``InvalidRequest`` with the
    wrong field.
    """
    args = dict(job.spider_args)
    settings = dict(job.job_settings)
    resources = cloud.resources(job.units)
    own = RunRequest(
        crawler.name, trigger=Trigger.API, args=args, settings=settings, resources=resources
    )
    return replace(
        own,
        tags=list(job.tags),
        priority=job.priority or own.priority,
        pool=job.pool,
        version=job.version,
        **more,
    )


def never_retried(ended_by: str | None, notes: Iterable[str | None]) -> bool:
    """Return whether an end is never retried.

    ``notes`` are the reasons why the run's tasks were not tried again (``next_try``).
    """
    return ended_by in _FINAL or any(note is not None and note.endswith(IS_FINAL) for note in notes)


def _times(quantity: str | None, times: int) -> str | None:
    """Return a multiple of a valid Kubernetes quantity (``500m``, ``1.5Gi``)."""
    if quantity is None:
        return None
    number = quantity.rstrip("mkKMGTPEi")
    return f"{(Decimal(number) * times).normalize():f}{quantity[len(number) :]}"

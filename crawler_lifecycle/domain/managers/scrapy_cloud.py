"""Scrapy Cloud's words in ours: spiders, projects, units, outcomes and metadata (docs/managers.md has the table)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from crawler_lifecycle.domain.bounds import Bound, check_number, refusal
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import Resources, RunRequest, RunStatus, Trigger

from .manager import FAILED_OUTCOMES, Job, run_request_id

#: What a job may ask for.
UNITS = Bound(1, 1000, "units", whole=True)
#: Statistics that stand for the four counters of a crawler which told nothing else, in the order of ``Counters``.
COUNTER_NAMES = {
    "pages": "response_received_count",
    "items": "item_scraped_count",
    "errors": "log_count/ERROR",
}
#: Outcomes that no retry can better: a person stopped it, or it was never on the cluster.
_FINAL_OUTCOMES = ("cancelled", "deploy_failed")
#: Exit codes by which a crawler says the same: a bad configuration, a fatal error.
_FINAL_EXIT_CODES = (4, 17)
#: Outcomes of our own by which a run is FAILED. A crawler that fails may add any word of its own.
FAILED_HERE = frozenset(
    (
        *FAILED_OUTCOMES,
        "lost",
        "evicted",
        "interrupted",
        "timed_out",
        "start_timeout",
        "deploy_failed",
        "banned",
        "partial",
    )
)
#: Crawlers that an error names.
_NAMED_MAX = 5


class JobRun(Protocol):
    """The fields of a run that are needed here; ``RunRow`` has it."""

    @property
    def run_id(self) -> int: ...
    @property
    def crawler(self) -> str: ...
    @property
    def status(self) -> RunStatus: ...
    @property
    def attempt(self) -> int: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def cause(self) -> str | None: ...
    @property
    def request(self) -> Mapping[str, object]: ...
    @property
    def multi(self) -> bool: ...
    @property
    def pages(self) -> int | None: ...
    @property
    def items(self) -> int | None: ...
    @property
    def errors(self) -> int | None: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def ended_at(self) -> datetime | None: ...


class JobTask(Protocol):
    """The fields that are needed of a task of its present attempt; ``TaskRow`` has it."""

    @property
    def outcome(self) -> str | None: ...
    @property
    def exit_code(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Cloud:
    """The settings of an installation for units and projects (``LIFECYCLE_PLANS__…``).

    Raises ``InvalidRequest`` for a unit that is no quantity.
    """

    unit: Resources = field(default_factory=lambda: Resources(memory="1Gi"))
    projects: Mapping[str, str] = field(default_factory=dict)
    """Number or alias of a project -> prefix of the names of its crawlers."""

    def resources(self, units: int | None) -> Resources:
        """Return what so many units ask for; without units what the crawler's entry says. Raises ``InvalidRequest``."""
        if units is None:
            return Resources()
        check_number("units", units, UNITS)
        try:
            return Resources(cpu=_times(self.unit.cpu, units), memory=_times(self.unit.memory, units))
        except InvalidRequest as error:
            raise InvalidRequest(f"units: {units} of them are too many: {error}") from None

    def crawler(self, spider: str, project_id: str | None, catalogue: Iterable[CrawlerDefinition]) -> CrawlerDefinition:
        """The crawler of that name, else the one whose spider it is; within the project where one is named.

        Raises ``InvalidRequest`` for an unknown project, and for a spider that none or several crawlers have.
        """
        prefix = self._prefix(project_id)
        mine = [one for one in catalogue if one.name.startswith(prefix)]
        named = next((one for one in mine if one.name == prefix + spider), None)
        found = [named] if named is not None else [one for one in mine if one.spider_name == spider]
        if len(found) == 1:
            return found[0]
        where = f" in project {project_id!r:.80}" if project_id is not None else ""
        if not found:
            cure = f"no crawler{where} has this name or this spider; crawlctl crawler list shows what there is"
            raise InvalidRequest(f"spider: {spider!r:.120} is unknown; {cure}")
        names = ", ".join(sorted(one.name for one in found)[:_NAMED_MAX])
        raise InvalidRequest(
            f"spider: {spider!r:.120} is unknown, because {len(found)} crawlers{where} have this spider ({names}"
            f"{', …' if len(found) > _NAMED_MAX else ''}); name one of these crawlers"
        )

    def _prefix(self, project_id: str | None) -> str:
        if project_id is None:
            return ""
        prefix = self.projects.get(project_id)
        if prefix is None:
            known = ", ".join(sorted(self.projects)) or "none"
            cure = f"name one of LIFECYCLE_PLANS__PROJECTS ({known[:300]}), or leave it out"
            raise refusal("project_id", project_id, cure)
        return prefix


def run_request_of(
    job: Job,
    seq: int,
    retry: int,
    crawler: CrawlerDefinition,
    cloud: Cloud,
    *,
    manager_id: int,
    parent: str,
    flow_id: str,
    requested_by: str | None = None,
) -> RunRequest:
    """The request of a job's run, the same for every try to begin it.

    ``crawler`` is that of the job (``Cloud.crawler``). Raises ``InvalidRequest`` that names what cannot be.
    """
    return RunRequest(
        crawler=crawler.name,
        trigger=Trigger.API,
        request_id=run_request_id(manager_id, seq, retry),
        args=dict(job.spider_args),
        settings=dict(job.job_settings),
        requested_by=requested_by,
        tags=list(job.tags),
        flow_id=flow_id,
        parent=parent,
        resources=cloud.resources(job.units),
    )


def state_of(status: RunStatus | str) -> str:
    """``pending``, ``running`` or ``finished``."""
    if status == RunStatus.INITIALIZING:
        return "pending"
    return "finished" if status in (RunStatus.COMPLETED, RunStatus.FAILED) else "running"


def outcome_of(run: JobRun, tasks: Sequence[JobTask]) -> str | None:
    """The outcome in Scrapy Cloud's sense: of a single-process run that of its task, which tells how a stop went.

    ``tasks``: those of the run's present attempt. ``None`` before the end.
    """
    if state_of(run.status) != "finished":
        return None
    own = tasks[0].outcome if len(tasks) == 1 and not run.multi else None
    return own or run.outcome


def never_retried(outcome: str | None, exit_codes: Iterable[int | None]) -> bool:
    """Say whether no retry can better this end. ``exit_codes``: of the tasks of the run."""
    return outcome in _FINAL_OUTCOMES or any(code in _FINAL_EXIT_CODES for code in exit_codes)


def job_metadata(
    run: JobRun,
    tasks: Sequence[JobTask] = (),
    statistics: Mapping[str, float] | None = None,
    *,
    spider: str | None = None,
    units: int | None = None,
) -> dict[str, Any]:
    """A run as the metadata of a job. Times are milliseconds since the epoch; what is unknown is ``None``.

    ``spider`` and ``units``: what the job asked for, where a manager began it.
    """
    counted = {name: getattr(run, ours) for ours, name in COUNTER_NAMES.items()}
    return {
        "state": state_of(run.status),
        "close_reason": outcome_of(run, tasks),
        "spider": spider or run.crawler,
        "spider_args": dict(_mapping(run.request.get("args"))),
        "job_settings": dict(_mapping(run.request.get("settings"))),
        "tags": _list(run.request.get("tags")),
        "units": units,
        "running_time": _milliseconds(run.started_at),
        "finished_time": _milliseconds(run.ended_at),
        "items": run.items,
        "pages": run.pages,
        "errors": run.errors,
        "scrapystats": dict(statistics or {name: value for name, value in counted.items() if value is not None}),
        "run_id": run.run_id,
        "attempt": run.attempt,
        "cause": run.cause,
    }


def _times(quantity: str | None, times: int) -> str | None:
    """So many times a quantity of Kubernetes (``500m``, ``1.5Gi``), which was checked before."""
    if quantity is None:
        return None
    number = quantity.rstrip("mkKMGTi")
    return f"{(Decimal(number) * times).normalize():f}{quantity[len(number) :]}"


def _milliseconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []

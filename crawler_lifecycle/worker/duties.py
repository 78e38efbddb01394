"""What a worker process does beside its activities, by the roles that it serves; and where its health tells of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.service import RPCError

from crawler_lifecycle.background import Beside
from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.compose import Parts, build_audit, build_parent_audit
from crawler_lifecycle.ports import Observer, ObserverHealth
from crawler_lifecycle.ports.store import Store
from crawler_lifecycle.settings import AuditSettings, Settings
from crawler_lifecycle.temporal.audit_schedule import keep_audit_schedule
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.schedules import ScheduleKeeper

from .finalizer_release import Releaser
from .health import Health
from .live_counters import Counting
from .overdue_looks import Overdue
from .wake_ups import Waker

log = logging.getLogger(__name__)


class Duties:
    """Begins them, each a task in the background that nothing ends but the process."""

    def __init__(self, settings: Settings, health: Health, workflows: Workflows, beside: Beside) -> None:
        self._settings, self._health, self._workflows, self._beside = settings, health, workflows, beside

    async def begin(
        self, client: Client, parts: Mapping[str, Parts], observer: Observer | None, store: Store, runtime: Runtime
    ) -> Waker | None:
        """Begin those of the roles in ``parts``; who wakes runs, where there is an ``observer``."""
        waker = None
        if observer is not None:
            waker = self._observe(observer, parts["cluster"].store if "cluster" in parts else store, runtime)
        if "cluster" in parts:
            self._release(parts["cluster"])
        if "audit" in parts:
            await self._audit(client, parts["audit"])
        return waker

    def _observe(self, observer: Observer, store: Store, runtime: Runtime) -> Waker:
        """Wake runs whose tasks changed, and write counters between looks."""
        waker = Waker(observer, store.wake_ups, self._workflows.look_now, _WakeMeters(runtime))
        self._health.beside["wake_ups"] = waker.state
        self._beside.start(waker.run())
        counting = Counting(observer, store.live_counters)
        self._health.beside["counting"] = counting.state
        self._beside.start(counting.run())
        return waker

    def _release(self, parts: Parts) -> None:
        """Let go of the evidence that the cluster keeps, once it is on record; where a cluster keeps any."""
        keeper = kind_of(self._settings.cluster).keeper()
        if keeper is not None:
            releaser = Releaser(keeper, parts.store.tasks)
            self._health.beside["releases"] = releaser.state
            self._beside.start(releaser.run())

    async def _audit(self, client: Client, parts: Parts) -> None:
        """Audit by a schedule, see after what is overdue or lost its workflow, and keep schedules alike in Temporal and
        in the database."""
        await _keep_schedule(client, self._settings.audit)
        repair = self._settings.audit.repair
        take_over = functools.partial(build_audit(parts).take_over, repair=repair)
        search = functools.partial(build_parent_audit(parts).search, repair=repair)
        overdue = Overdue(
            parts.store.overdue, take_over, self._workflows.look_now, search, note=parts.store.troubles.note_stale
        )
        self._health.beside["overdue"] = overdue.state
        self._beside.start(overdue.run())
        schedules = ScheduleKeeper(parts.store.schedules, self._workflows)
        self._health.beside["schedules"] = schedules.state
        self._beside.start(schedules.run())


class _WakeMeters:
    """Wake-ups in the worker's metrics."""

    def __init__(self, runtime: Runtime) -> None:
        meter = runtime.metric_meter
        self._wake_ups = meter.create_counter("lifecycle_wake_ups", "Changes that the observer noticed, by what became")
        self._up = meter.create_gauge("lifecycle_observer_up", "1 while the observer sees the cluster, otherwise 0")

    def count(self, what: str, by: int) -> None:
        self._wake_ups.add(by, {"what": what})

    def observer(self, health: ObserverHealth) -> None:
        self._up.set(int(health.up))


async def _keep_schedule(client: Client, settings: AuditSettings) -> None:
    """Make the schedule of audits what the settings say. Without the right to, audits on demand still work."""
    try:
        await keep_audit_schedule(client, settings.every_s, settings.repair)
    except RPCError as error:
        log.warning(
            "audits are not scheduled (%s); give this worker the right to, or call crawlctl audit from a timer", error
        )

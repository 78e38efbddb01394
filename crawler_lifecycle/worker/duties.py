"""Background services of a worker process, and its health endpoints for probes."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from temporalio.client import Client
from temporalio.service import RPCError

from crawler_lifecycle.activities.poll_step import Recorder
from crawler_lifecycle.background import Beside
from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.compose import Parts, build_audit, build_parent_audit
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.ports.cluster import Observer
from crawler_lifecycle.settings import AuditSettings, Settings, fingerprints
from crawler_lifecycle.store.notes import Beats, SameSettings
from crawler_lifecycle.store.runs.tickets import SlotLines
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.audit_schedule import keep_audit_schedule
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.origins import Gate, programs_only

from .finalizer_release import Releaser
from .live_counters import Counting
from .overdue_polls import Overdue
from .recording import Recording
from .slot_calls import SlotCalls

log = logging.getLogger(__name__)


class Service(Protocol):
    """A background service."""

    def state(self) -> Mapping[str, object]:
        """Return the state for a probe."""

    async def run(self) -> None:
        """Work until cancelled. Never raises."""


@dataclass(eq=False)
class Duties:
    """Starts the background services.

    Each service is a task in the event loop, and ends only with the process.
    """

    settings: Settings
    health: Health
    workflows: Workflows
    beside: Beside

    async def begin(
        self,
        client: Client,
        parts: Mapping[str, Parts],
        observer: Observer | None,
        observing: Parts | None,
        store: Store,
    ) -> Recording | None:
        """Start the services of the roles in ``parts``.

        Return the recorder of changes to runs, if it is started.

        ``observing`` contains the parts that the observing services use. If ``observer`` is
        ``None``, these are the parts of the ``cluster`` role.
        """
        same = SameSettings(store.notes, "worker", fingerprints(self.settings))
        self.health.beside["settings"] = lambda: {"problem": same.problem}
        self.beside.start(same.run())
        self.beside.start(Beats(store.notes, self.health.roles).run())
        recording = None if observing is None else self._record(observer, observing)
        if "cluster" in parts:
            self._release(parts["cluster"])
            self._call(parts["cluster"])
        if "audit" in parts:
            await self._audit(client, parts["audit"])
        return recording

    def _record(self, observer: Observer | None, parts: Parts) -> Recording:
        """Start recording changes and, if there is an observer, live counters."""
        store = parts.store
        recorder = Recorder(store.polls, store.retries, parts.cluster, parts.policies)
        recording = Recording(observer, store.wake_ups, recorder, self.workflows.poll_recorded)
        self._begin("wake_ups", recording)
        if observer is not None:
            self._begin("counting", Counting(observer, store.live_counters))
        return recording

    def _release(self, parts: Parts) -> None:
        """Start removing finalizers from ended tasks that are recorded, if the cluster uses
        finalizers.
        """
        keeper = kind_of(self.settings.cluster).keeper()
        if keeper is not None:
            self._begin("releases", Releaser(keeper, parts.store.tasks))

    def _call(self, parts: Parts) -> None:
        """Start calling runs that wait for slots, including slots of pools that were removed from
        the settings.
        """
        lines: dict[str, SlotLines] = {"pools": parts.store.pools, "caps": parts.store.caps}
        for name, line in lines.items():
            self._begin(name, SlotCalls(name, line, self.workflows.place_free))

    async def _audit(self, client: Client, parts: Parts) -> None:
        """Start the scheduled audits, the search for overdue polls and lost workflows, and the
        keepers of features.
        """
        await _keep_schedule(client, self.settings.audit)
        repair = self.settings.audit.repair
        audit = build_audit(parts)
        parents = build_parent_audit(parts)
        take_over = functools.partial(audit.take_over, repair=repair)
        searches = [
            *(functools.partial(parents.search, what, repair=repair) for what in parents.kinds),
            functools.partial(audit.take_over_ended, repair=repair),
            functools.partial(audit.end_forced),
        ]
        overdue = Overdue(
            parts.store.overdue,
            take_over,
            self.workflows.poll_now,
            searches,
            note=parts.store.run_reports.note_stale,
            begin=self.workflows.has_begun,
        )
        self._begin("overdue", overdue)
        for feature in FEATURES:
            if feature.keeper is not None:
                self._begin(feature.name, feature.load(feature.keeper)(parts.store, self.workflows))

    def _begin(self, name: str, service: Service) -> None:
        self.health.beside[name] = service.state
        self.beside.start(service.run())


async def _keep_schedule(client: Client, settings: AuditSettings) -> None:
    """Update the schedule of audits from the settings.

    A worker without the permission logs this and continues.
    """
    try:
        await keep_audit_schedule(client, settings.interval_s, settings.repair)
    except RPCError as error:
        log.warning(
            "audits are not scheduled (%s); allow this worker to schedule them, or call crawlctl "
            "audit from a timer",
            error,
        )


@dataclass
class Health:
    """Answers to probes. The process is alive if its event loop runs, and ready if nothing is
    missing.
    """

    roles: list[str]
    version: str | None = None
    missing: dict[str, str] = field(default_factory=lambda: {"temporal": "not connected yet"})

    beside: dict[str, Callable[[], Mapping[str, object]]] = field(default_factory=dict)
    """Functions that return the state of each background service, by name. These states do not
    affect the worker's readiness.
    """

    def app(self, listens: str) -> Starlette:
        """Return the app with ``/healthz`` (alive) and ``/readyz`` (ready, or the missing parts and
        the fix).
        """

        async def healthz(_: Request) -> JSONResponse:
            return JSONResponse(
                {
                    "status": "alive",
                    "roles": self.roles,
                    "version": self.version,
                    "pid": os.getpid(),
                }
            )

        async def readyz(_: Request) -> JSONResponse:
            body = {"ready": not self.missing, "missing": self.missing}
            body |= {name: dict(state()) for name, state in self.beside.items()}
            return JSONResponse(body, status_code=503 if self.missing else 200)

        gate = Middleware(Gate, check=programs_only(listens))
        return Starlette(
            routes=[Route("/healthz", healthz), Route("/readyz", readyz)], middleware=[gate]
        )

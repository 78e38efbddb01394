"""What a worker's probes answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from crawler_lifecycle.web.origins import Gate, programs_only


@dataclass
class Health:
    """What the probes answer. Liveness is the event loop itself; readiness is a list of what is missing."""

    roles: list[str]
    version: str | None = None
    missing: dict[str, str] = field(default_factory=lambda: {"temporal": "not connected yet"})

    wake_ups: Callable[[], Mapping[str, object]] | None = None
    """How the observer stands. A dead one is no reason to take no work: it only makes things faster."""
    counting: Callable[[], Mapping[str, object]] | None = None
    """Of how many running tasks counters were written between looks, and why that fails."""
    releases: Callable[[], Mapping[str, object]] | None = None
    """How many ends the cluster still keeps as evidence, and why they cannot be let go of."""
    numbers: Callable[[], Mapping[str, object]] | None = None
    """Whether everything that bears numbers of runs has said which ones. New ones are given out all the same."""
    overdue: Callable[[], Mapping[str, object]] | None = None
    """How many looks are overdue, and what was done about them."""
    schedules: Callable[[], Mapping[str, object]] | None = None
    """How many schedules were compared with Temporal, and why that fails. Temporal fires all the same."""
    plans: Callable[[], Mapping[str, object]] | None = None
    """How many processes with users' code there are, which plans are served, and which are broken. A broken one is no
    reason to take no work: the others are served."""

    def app(self, listens: str) -> Starlette:
        """``/healthz`` (alive) and ``/readyz`` (serving; otherwise what is missing and the cure)."""

        async def healthz(_: Request) -> JSONResponse:
            return JSONResponse({"status": "alive", "roles": self.roles, "version": self.version, "pid": os.getpid()})

        async def readyz(_: Request) -> JSONResponse:
            body: dict[str, object] = {"ready": not self.missing, "missing": self.missing}
            if self.wake_ups is not None:
                body["wake_ups"] = dict(self.wake_ups())
            if self.counting is not None:
                body["counting"] = dict(self.counting())
            if self.releases is not None:
                body["releases"] = dict(self.releases())
            if self.numbers is not None:
                body["numbers"] = dict(self.numbers())
            if self.overdue is not None:
                body["overdue"] = dict(self.overdue())
            if self.schedules is not None:
                body["schedules"] = dict(self.schedules())
            if self.plans is not None:
                body["plans"] = dict(self.plans())
            return JSONResponse(body, status_code=503 if self.missing else 200)

        gate = Middleware(Gate, check=programs_only(listens))
        return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)], middleware=[gate])

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

    beside: dict[str, Callable[[], Mapping[str, object]]] = field(default_factory=dict)
    """What goes on beside the activities -> how that stands. None of it is a reason to take no work."""

    def app(self, listens: str) -> Starlette:
        """``/healthz`` (alive) and ``/readyz`` (serving; otherwise what is missing and the cure)."""

        async def healthz(_: Request) -> JSONResponse:
            return JSONResponse({"status": "alive", "roles": self.roles, "version": self.version, "pid": os.getpid()})

        async def readyz(_: Request) -> JSONResponse:
            body: dict[str, object] = {"ready": not self.missing, "missing": self.missing}
            body |= {name: dict(tell()) for name, tell in self.beside.items()}
            return JSONResponse(body, status_code=503 if self.missing else 200)

        gate = Middleware(Gate, check=programs_only(listens))
        return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)], middleware=[gate])

"""Figures of our HTTP services for Prometheus, each in a registry of its own: two services in one process share none.

A worker's figures come from the SDK (``activities/meters.py``); each process has exactly one endpoint. Labels are
closed sets: operations of ours, never paths.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler_lifecycle.domain.errors import LifecycleError

#: Seconds of an answer.
ANSWER_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: The answer to a question: the value of each of its gauges; of one with a label the value of each word, 0 by default.
Values = Iterable[float | Mapping[str, float]]


@functools.cache
def release() -> str:
    """The version of this installation."""
    try:
        return version("crawler-lifecycle")
    except PackageNotFoundError:
        return "unknown"


def build() -> dict[str, str]:
    """Version and build of this installation, for the metrics ``…_build_info``."""
    return {"version": release(), "build": os.environ.get("TEMPORAL_WORKER_BUILD_ID", "")}


class Asked(NamedTuple):
    """A gauge that a question brings up to date."""

    name: str
    text: str
    label: str | None = None
    words: Sequence[str] = ()
    """The values of the label."""


class Figures:
    """The figures that each service has, and those that a question brings up to date."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self.prefix = f"crawler_lifecycle_{service}"
        info = Gauge(f"{self.prefix}_build_info", "Always 1; version and build", tuple(build()), registry=self.registry)
        info.labels(**build()).set(1)
        self._requests = Counter(
            f"{self.prefix}_requests", "Requests that were answered", ("operation", "status"), registry=self.registry
        )
        self._answer = Histogram(
            f"{self.prefix}_answer_seconds",
            "From the head of a request to the head of its answer",
            ("operation",),
            registry=self.registry,
            buckets=ANSWER_BUCKETS,
        )
        self._questions: list[Callable[[], None]] = []

    def ask(self, question: Callable[[], Values], *asked: Asked) -> None:
        """Add gauges that ``question`` answers, which may block. An error makes them unknown (NaN), and not zero."""
        gauges = [(Gauge(a.name, a.text, [a.label] if a.label else (), registry=self.registry), a) for a in asked]

        def show(values: Values) -> None:
            for (gauge, about), value in zip(gauges, values, strict=False):
                if not isinstance(value, Mapping):
                    value = dict.fromkeys(about.words, value) if about.words else {"": value}
                for word in about.words or [""]:
                    (gauge.labels(word) if word else gauge).set(value.get(word, 0))

        def renew() -> None:
            try:
                show(question())
            except LifecycleError:
                show(itertools.repeat(math.nan))

        show(itertools.repeat(math.nan))
        self._questions.append(renew)

    def renew(self) -> None:
        """Ask every question again. Blocks."""
        for renew in self._questions:
            renew()

    def answer(self) -> Response:
        """Everything in Prometheus' text format."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def requests(self, app: ASGIApp) -> ASGIApp:
        """ASGI middleware that counts requests by operation and status, and times their answers.

        A request that reached no operation (unknown path, refused before) counts under ``none``.
        """

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = time.perf_counter()

            async def seen(message: Message) -> None:
                if message["type"] == "http.response.start":
                    operation = getattr(scope.get("route"), "operation_id", None) or "none"
                    self._requests.labels(operation, str(message["status"])).inc()
                    self._answer.labels(operation).observe(time.perf_counter() - began)
                await send(message)

            await app(scope, receive, seen)

        return measured

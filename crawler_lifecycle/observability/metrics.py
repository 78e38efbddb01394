"""Prometheus metrics of our HTTP services.

Each service has its own registry, so two services in one process share no metrics.

The metrics of a worker come from the SDK (``activities/meters.py``). Each process has exactly one
endpoint for metrics. Labels have a fixed set of values, such as names of operations, but never
paths. Only gauges of ``Figures.info`` have labels that people choose, in a limited number.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.projects import DEFAULT, limited, only

#: Buckets for the time to the response, in seconds.
ANSWER_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: The label of metrics that belong to one project.
PROJECT = "project"
#: The values of gauges, in the order of the gauges. A gauge with a label gets a mapping from values
#: of the label to numbers. Missing numbers are 0.
Values = Iterable[float | Mapping[str, float]]
#: The values of the labels of one sample.
Row = Sequence[str]


@functools.cache
def release() -> str:
    """Return the version of this installation."""
    try:
        return version("crawler-lifecycle")
    except PackageNotFoundError:
        return "unknown"


def build() -> dict[str, str]:
    """Return the version and build of this installation, for the metrics ``…_build_info``."""
    return {"version": release(), "build": os.environ.get("TEMPORAL_WORKER_BUILD_ID", "")}


class QueryGauge(NamedTuple):
    """A gauge that is updated by a callback (``Figures.ask``)."""

    name: str
    text: str
    label: str | None = None
    words: Sequence[str] = ()
    """All values of its label."""


class Figures:
    """The metrics that every service has, and gauges that are updated by callbacks."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self.prefix = f"crawler_lifecycle_{service}"
        info = Gauge(
            f"{self.prefix}_build_info",
            "Always 1; version and build",
            tuple(build()),
            registry=self.registry,
        )
        info.labels(**build()).set(1)
        self._requests = Counter(
            f"{self.prefix}_requests",
            "Requests with a response",
            ("operation", "status"),
            registry=self.registry,
        )
        self._answer = Histogram(
            f"{self.prefix}_answer_seconds",
            "Seconds from the head of a request to the head of its response",
            ("operation",),
            registry=self.registry,
            buckets=ANSWER_BUCKETS,
        )
        self._questions: list[Callable[[Iterable[str]], None]] = []
        self._projects: set[str] = set()

    def ask(
        self, question: Callable[[], Values], *asked: QueryGauge, everywhere: bool = False
    ) -> None:
        """Add gauges whose values ``question`` returns.

        ``question`` may block. After an error, the values of its gauges are NaN instead of zero.

        ``question`` is called for each project, and then has no access to other projects. If
        ``everywhere`` is true, it is called only once, for all projects.
        """
        own = () if everywhere else (PROJECT,)
        gauges = [
            Gauge(a.name, a.text, (*filter(None, [a.label]), *own), registry=self.registry)
            for a in asked
        ]

        def show(project: str | None, values: Values) -> None:
            for gauge, about, value in zip(gauges, asked, values, strict=False):
                if not isinstance(value, Mapping):
                    value = dict.fromkeys(about.words, value) if about.words else {"": value}
                for word in about.words or [""]:
                    labels = [text for text in (word, project) if text]
                    (gauge.labels(*labels) if labels else gauge).set(value.get(word, 0))

        def renew(projects: Iterable[str]) -> None:
            for project in [None] if everywhere else projects:
                try:
                    with limited(project):
                        show(project, question())
                except LifecycleError:
                    show(project, itertools.repeat(math.nan))

        show(None if everywhere else DEFAULT, itertools.repeat(math.nan))
        self._questions.append(renew)

    def info(
        self, name: str, text: str, labels: Sequence[str], rows: Callable[[], Iterable[Row]]
    ) -> None:
        """Add a gauge that is always 1 for each row, whose labels are its values and the project.

        ``rows`` may block, and must limit how many there are. It is called for each project, and
        then has no access to other projects. After an error, the project has no rows.
        """
        shown: dict[str, Sequence[Row]] = {}

        def renew(projects: Iterable[str]) -> None:
            for project in projects:
                try:
                    with limited(project):
                        shown[project] = [*rows()]
                except LifecycleError:
                    shown[project] = ()

        self.registry.register(_Info(name, text, (*labels, PROJECT), shown))
        self._questions.append(renew)

    def renew(self, projects: Iterable[str]) -> None:
        """Call every ``question`` again for each of these projects, and update the gauges. This
        call blocks.
        """
        self._projects |= {DEFAULT, *projects}
        for renew in self._questions:
            renew(sorted(self._projects))

    def answer(self) -> Response:
        """Return all metrics, or only those of the caller's project, in the Prometheus text
        format.
        """
        shown: Any = self.registry if only() is None else _OfProject(self.registry, only())
        return Response(generate_latest(shown), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def requests(self, app: ASGIApp) -> ASGIApp:
        """Return ASGI middleware that counts requests by operation and status, and measures the
        time to the response.

        A request that does not reach an operation, because the path is unknown or the request is
        refused before that, counts as ``none``.
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


@dataclass(eq=False)
class _Info(Collector):
    """A gauge that is always 1, with other labels at each scrape."""

    name: str
    text: str
    labels: Sequence[str]
    rows: Mapping[str, Sequence[Row]]
    """The rows of each project."""

    def collect(self) -> Iterator[Metric]:
        metric = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for project, rows in [*self.rows.items()]:
            for row in rows:
                metric.add_metric([*row, project], 1)
        yield metric


@dataclass
class _OfProject:
    """The metrics in a registry, limited to samples with the label of one project."""

    registry: CollectorRegistry
    project: str | None

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            metric.samples = [
                sample for sample in metric.samples if sample.labels.get(PROJECT) == self.project
            ]
            if metric.samples:
                yield metric

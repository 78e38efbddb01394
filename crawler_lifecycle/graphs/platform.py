"""``Platform``: the questions and commands that a handle sends to a gateway, a worker or a test's
memory.

``nested`` arranges the results of several steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from crawler_lifecycle.domain.run_data import DataSource
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec

Document = dict[str, Any]


class Platform(DataSource, Protocol):
    """Answers questions about graphs and carries out commands.

    ``key`` is the id of a graph. ``paths`` select steps. The path of a sub-graph means all jobs in
    it, and ``None`` means all jobs. Commands raise ``KeyError`` for an unknown graph and
    ``InvalidRequest`` for an invalid request. Every method raises ``PlatformUnavailable`` if there
    is no response. Any thread may call any method.
    """

    def send(self, key: str, spec: GraphSpec, *, name: str | None, tags: Sequence[str]) -> bool:
        """Start a graph, and return whether the graph is new.

        Raises ``DuplicateRequest`` if another graph has this id.
        """

    def status(self, key: str) -> Document | None:
        """Return the status of a graph, or ``None`` if the graph is unknown.

        The fields are ``name``, ``state``, ``total``, ``counts``, ``started_at``, ``stopped_at``
        and ``subs``, which has the status of each sub-graph by its name.
        """

    def find(self, *, states: Collection[str], keys: Collection[str], limit: int) -> list[Document]:
        """Return graphs, newest first; empty ``states`` or ``keys`` mean all.

        The fields are ``id``, ``name``, ``state``, ``counts``, and the times ``created_at``,
        ``updated_at``, ``started_at``, ``ended_at``.
        """

    def jobs(self, key: str, paths: Sequence[str] | None) -> list[Document]:
        """Return steps and sub-graphs in order, in the form that ``graphs.job.Job.of`` reads.

        Times are ISO 8601.
        """

    def recorded(self, key: str, paths: Sequence[str] | None) -> dict[str, Any]:
        """Return the values that steps give to their dependents (``domain.graph.rows.Given``), by
        path and in order.
        """

    def context(self, key: str, path: str) -> dict[str, Any] | None:
        """Return the context of cascades in the sub-graph with this path; ``""`` means the whole
        graph.

        Return ``None`` if no context was set.
        """

    def cancel(self, key: str, paths: Sequence[str] | None, reason: str | None) -> int:
        """Cancel steps, and return how many of them had not ended."""

    def retry(self, key: str, paths: Sequence[str] | None, *, cascade: bool, fresh: bool) -> int:
        """Start steps again, and return their number."""

    def append(self, key: str, spec: GraphSpec) -> int:
        """Add steps to a graph, even if the graph has ended, and return the number of added
        steps.
        """

    def graft(self, key: str, path: str, attempt: int, spec: GraphSpec) -> None:
        """Attach steps below a graft that is executing this attempt."""

    def cancelled(self, key: str, path: str, attempt: int) -> bool:
        """Return whether this attempt of an executing step must end."""

    def crawls(self, key: str, paths: Sequence[str]) -> list[Document]:
        """Return the crawl, or the crawls of the sub-graph, at the first of these paths that
        exists.

        The fields are ``path``, ``run_id`` (``None`` before a run was begun), ``state`` and
        ``outcome``.
        """

    def wait(self, key: str, timeout_s: float | None) -> Document:
        """Wait until the graph has ended, and return its status.

        Raises ``KeyError`` for an unknown graph, and ``TimeoutError`` after ``timeout_s`` seconds.
        """


class PlatformUnavailable(ConnectionError):
    """Raised if no gateway is known, or if the gateway cannot be reached or refuses the caller.

    The message names the fix.
    """


def with_above(path: str) -> list[str]:
    """Return the paths of the sub-graphs around a path, outermost first, then the path itself."""
    parts = path.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def nested(given: Mapping[str, Any], below: str) -> Any:
    """Return the results below a path as nested dictionaries in order, or a single step's
    result.
    """
    holding = {path.rpartition("/")[0] for path in given}
    if below in given and below not in holding:
        return given[below]
    prefix = f"{below}/" if below else ""
    found: dict[str, Any] = {}
    for path, value in given.items():
        if not path.startswith(prefix):
            continue
        *above, name = path.removeprefix(prefix).split("/")
        level = found
        for parent in above:
            level = level.setdefault(parent, {})
        level[name] = {} if path in holding else value
    return found or None

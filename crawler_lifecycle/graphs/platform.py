"""Questions and commands of a handle. The gateway answers, or the worker around a function, or a test's memory; and
results as those see them who ask for several."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from crawler_lifecycle.domain.graph.spec import GraphSpec
from crawler_lifecycle.domain.run_data import DataSource

Document = dict[str, Any]


class Platform(DataSource, Protocol):
    """Answers about graphs, known by their ids. Steps are named by their paths; a graph's path stands for all jobs in
    it, and ``None`` for all there are. Commands raise ``KeyError`` for a graph that nobody knows and ``InvalidRequest``
    for what cannot be; every method raises ``PlatformUnavailable`` when nobody answers. Any thread may call it."""

    def send(self, key: str, spec: GraphSpec, *, name: str | None, tags: Sequence[str]) -> bool:
        """Start a graph; whether it is new. Raises ``DuplicateRequest`` when another one has this id."""
        ...

    def status(self, key: str) -> Document | None:
        """``name``, ``state``, ``total``, ``counts``, ``started_at``, ``stopped_at``, ``subs`` (name -> the same)."""
        ...

    def find(self, *, states: Collection[str], keys: Collection[str], limit: int) -> list[Document]:
        """Graphs, newest first: ``id``, ``name``, ``state``, ``counts``, and the times ``created_at``, ``updated_at``,
        ``started_at``, ``ended_at``. Nothing of ``states`` or ``keys``: all."""
        ...

    def jobs(self, key: str, paths: Sequence[str] | None) -> list[Document]:
        """Steps as ``graphs.job.Job.of`` reads them, in their order; graphs are left out. Times are ISO 8601."""
        ...

    def recorded(self, key: str, paths: Sequence[str] | None) -> dict[str, Any]:
        """Path -> recorded result, of those that have one."""
        ...

    def context(self, key: str, path: str) -> dict[str, Any] | None:
        """Return what the cascades in the graph of this path (``""``: the whole) get; ``None`` when nothing was ever
        set."""
        ...

    def cancel(self, key: str, paths: Sequence[str] | None, reason: str | None) -> int:
        """Cancel; how many had not ended."""
        ...

    def retry(self, key: str, paths: Sequence[str] | None, *, cascade: bool, fresh: bool) -> int:
        """Let steps begin anew; how many."""
        ...

    def append(self, key: str, spec: GraphSpec) -> int:
        """Add steps to a graph, also to one that has ended; how many."""
        ...

    def graft(self, key: str, path: str, attempt: int, spec: GraphSpec) -> None:
        """Attach steps to the step that grafts, which executes this attempt."""
        ...

    def cancelled(self, key: str, path: str, attempt: int) -> bool:
        """Return whether this attempt of a step, which executes, is to end."""
        ...

    def crawls(self, key: str, paths: Sequence[str]) -> list[Document]:
        """The crawl, or the crawls in the graph, of the first of these paths that there is: ``path``, ``run_id``
        (``None``: none was begun), ``state``, ``outcome``."""
        ...

    def wait(self, key: str, timeout_s: float | None) -> Document:
        """The status when the graph has ended. Raises ``KeyError``, and ``TimeoutError`` when it has not by then."""
        ...


class PlatformUnavailable(ConnectionError):
    """Nobody answers: no gateway is known, it cannot be reached, or refuses the caller. The text says what to do."""


def with_above(path: str) -> list[str]:
    """A path, and before it those of the graphs that it is in, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def nested(recorded: Mapping[str, Any], below: str) -> Any:
    """Results by path as dicts within dicts, from this path on; the result itself when that is one step. Of a step that
    has grafted, what is in it counts and not its own."""
    holding = {path.rpartition("/")[0] for path in recorded}
    if below in recorded and below not in holding:
        return recorded[below]
    prefix = f"{below}/" if below else ""
    found: dict[str, Any] = {}
    for path, value in recorded.items():
        if path in holding or not path.startswith(prefix):
            continue
        *above, name = path.removeprefix(prefix).split("/")
        level = found
        for one in above:
            level = level.setdefault(one, {})
        level[name] = value
    return found or None

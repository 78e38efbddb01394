"""What a handle asks and has done, and who answers: the gateway, the worker around a function, or a test's memory.

Each question of a handle can be awaited and can be a plain call. There is one rule for it (``answer``): where an event
loop runs in this thread, the question is a coroutine, and a thread of its own asks; elsewhere it is the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from crawler_lifecycle.domain.graph.spec import GraphSpec

Document = dict[str, Any]
T = TypeVar("T")


class Platform(Protocol):
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
        """Graphs, newest first: ``id``, ``name``, ``state``, ``created_at``, ``updated_at``."""
        ...

    def jobs(self, key: str, paths: Sequence[str] | None) -> list[Document]:
        """Steps with the fields of ``graphs.job.Job``, in their order."""
        ...

    def recorded(self, key: str, paths: Sequence[str] | None) -> dict[str, Any]:
        """Path -> recorded result, of those that have one."""
        ...

    def context(self, key: str, path: str) -> dict[str, Any] | None:
        """What the cascades in the graph of this path (``""``: the whole) get; ``None`` when nothing was ever set."""
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
        """Whether this execution of a step is to end, or has ended."""
        ...

    def wait(self, key: str, timeout_s: float | None) -> Document:
        """The status when the graph has ended. Raises ``KeyError``, and ``TimeoutError`` when it has not by then."""
        ...


class PlatformUnavailable(ConnectionError):
    """Nobody answers: no gateway is known, it cannot be reached, or refuses the caller. The text says what to do."""


_current: list[Platform] = []


def use(platform: Platform | None) -> Platform | None:
    """Have every handle of this process ask this one (``None``: the gateway that is found); the former one."""
    former = _current[0] if _current else None
    _current[:] = [platform] if platform else []
    return former


def current() -> Platform:
    """The one that is in use, else the gateway that ``crawlctl`` would call. Raises ``PlatformUnavailable``."""
    if not _current:
        raise PlatformUnavailable("no gateway is known; name one in LIFECYCLE_GATEWAY__URL")
    return _current[0]


def answer(ask: Callable[[], T]) -> Any:
    """The answer; within a running event loop a coroutine that gives it, which holds up nothing else there."""
    asyncio: Any = sys.modules.get("asyncio")  # whoever runs a loop has it; others need not load it
    if asyncio is None or asyncio._get_running_loop() is None:
        return ask()
    return asyncio.to_thread(ask)

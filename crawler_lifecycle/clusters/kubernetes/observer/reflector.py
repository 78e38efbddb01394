"""A reflector, as in client-go: it lists one kind of object, and then watches it.

A list counts only when it is complete: objects of the previous list that are missing from it are
gone. A watch continues at the version where the list or the previous watch ended normally. A new
list is read after a watch that was interrupted, was silent for too long, or whose version has
expired (410). The reason: the next server may have older data. A restored server, for example,
reports nothing until it reaches our version. In addition, a new list is read when the last list is
older than ``Pace.list_s``, to correct errors that we did not notice.

A server may keep the connection but send nothing. Bookmarks come about once a minute, so a watch
that is silent for ``Pace.silence_s`` is closed. After a failure the pause before the next try
doubles, from 0.4 s to 30 s. A watch that ends at once without an event is a failure too: otherwise
a broken proxy would get thousands of requests per second. While the server does not respond, the
pause stays short: such a try costs the server little, and no status changes until it returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from crawler_lifecycle.background import CHANCE, Loop
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, TooManyRequests
from crawler_lifecycle.clusters.kubernetes.client.objects import decode

from .changes import KEPT, ObjectFacts

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.clusters.kubernetes.client.watches import Watch, WatchEvent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """The durations of watches, lists and pauses, all in seconds."""

    watch_s: tuple[float, float] = (300.0, 600.0)
    """The range of a watch's duration, which is random so that watches do not all end at the same
    time.
    """
    list_s: float = 300.0
    """When a watch ends and the last list is older than this, a new list is read."""
    silence_s: float = 180.0
    first_s: float = 0.4
    most_s: float = 30.0
    healthy_s: float = 120.0
    """After this many seconds without a failure, the pauses are short again."""
    short_s: float = 1.0
    """A watch that ends before this time without an event has failed."""


class _TooShort(ApiError):
    """A watch that ended normally, but much too early."""


@dataclass(eq=False)
class Reflector(Generic[T]):
    """A reporter of the objects of one kind below ``path`` that ``labels`` selects, and of changes
    to these objects.

    ``complete`` gets all objects of a list. ``changed`` gets each object that was added, changed or
    removed. Both are called in the reflector's thread, and must return quickly.
    """

    api: Api
    kind: type[T]
    path: str
    labels: str
    complete: Callable[[type, Sequence[ObjectFacts]], None]
    changed: Callable[[type, ObjectFacts], None]
    pace: Pace

    def __post_init__(self) -> None:
        self._loop = Loop(
            f"the watch of {self.path}",
            0.0,
            meanwhile="only the regular polls find changes",
            retry_s=(self.pace.first_s, self.pace.most_s),
        )
        self._stream: Watch | None = None
        self._version: str | None = None
        """The version where the next watch begins; ``None`` means that a list must come first."""
        self._listed_at = -float("inf")
        self.lists = 0
        """The number of lists that have been started."""
        self.problem: str | None = "the first watch has not begun yet"
        """The reason why no watch works at the moment; any thread may read it."""

    def leave(self) -> None:
        """End the current watch, even while it waits. Any thread may call this."""
        if self._stream is not None:
            self._stream.close()

    def run(self, over: threading.Event) -> None:
        """List and watch until ``over`` is set.

        The caller must also call ``leave`` to end the current watch. Raises nothing.
        """
        self._loop.run_in_thread(lambda: self._turn(over), over)

    def _turn(self, over: threading.Event) -> float:
        """Read one list if it is due, and then one watch. Return the seconds to wait afterwards."""
        try:
            if self._version is None or time.monotonic() - self._listed_at >= self.pace.list_s:
                self._list()
            return self._watch(over)
        except Exception as error:
            if over.is_set():
                return 0.0
            self.problem = str(error) or type(error).__name__
            if not isinstance(error, TooManyRequests | _TooShort):
                self._version = None
            raise

    def _list(self) -> None:
        self._version = None
        self.lists += 1
        found = self.api.listing(self.path, self.kind, labels=self.labels, keep=KEPT[self.kind])
        self.complete(self.kind, found.items)
        self._version = found.resource_version
        self._listed_at = time.monotonic()

    def _watch(self, over: threading.Event) -> float:
        """Read one watch until it ends, and return the seconds to wait afterwards.

        Raises ``ApiError``.
        """
        began = time.monotonic()
        heard = False
        with self.api.watch(
            self.path,
            labels=self.labels,
            resource_version=self._version or "",
            timeout_s=round(CHANCE.uniform(*self.pace.watch_s)),
            silence_s=self.pace.silence_s,
        ) as self._stream:
            self.problem = None
            if over.is_set():  # ``leave`` may have been called before this watch existed
                self.leave()
            for event in self._stream:
                heard = heard or event.type != "BOOKMARK"
                self._take(event)
                if time.monotonic() - began >= self.pace.healthy_s:
                    self._loop.failures.worked()
        lasted = time.monotonic() - began
        if not heard and lasted < self.pace.short_s and not over.is_set():
            raise _TooShort(f"the Kubernetes API ends each watch at once: watch {self.path}")
        return max(0.0, self.pace.short_s - lasted)

    def _take(self, event: WatchEvent) -> None:
        if event.type != "BOOKMARK":
            found = KEPT[self.kind](decode(self.kind, event.object))
            self.changed(self.kind, ObjectFacts(found.uid) if event.type == "DELETED" else found)
        self._version = event.resource_version

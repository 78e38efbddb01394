"""A reflector as in client-go: lists one kind of object, then watches it.

A list counts only when it is complete: remembered objects that it lacks are gone. A watch continues where the list or
the watch before it ended normally. A watch that broke off, fell silent, or whose version has expired (410) is followed
by a list: the next server may know less, and a watch from a version that a restored server has not reached yet would
report nothing. A list also follows when the last one is older than ``Pace.list_s``: it corrects unnoticed errors.

A server may say nothing at all and keep the connection: bookmarks come about once a minute, so a watch that is silent
for ``Pace.silence_s`` is closed. After a failure the next try comes after a pause that doubles from 0.8 s to 30 s; a
watch that ends at once without an event is a failure too, or a broken proxy would get thousands of requests a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from crawler_lifecycle.background import CHANCE, Loop
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, Throttled
from crawler_lifecycle.clusters.kubernetes.client.objects import decode

from .changes import KEPT, Kept

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.clusters.kubernetes.client.watches import Watch, WatchEvent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of watches, lists and pauses, all in seconds."""

    watch_s: tuple[float, float] = (300.0, 600.0)
    """A watch ends after a random time between these, so that watches do not all end at once."""
    list_s: float = 300.0
    """A watch that ends is followed by a list when the last one is older than this."""
    silence_s: float = 180.0
    first_s: float = 0.8
    most_s: float = 30.0
    healthy_s: float = 120.0
    """Seconds without a failure after which the pauses are short again."""
    short_s: float = 1.0
    """A watch that ends before this without an event has failed."""


class _TooShort(ApiError):
    """A watch ended normally, but much too soon."""


class Reflector(Generic[T]):
    """Reports the objects of one kind under ``path`` that ``labels`` selects, and their changes.

    ``complete`` gets all objects of a list; ``changed`` gets each object that was added, changed or removed. Both are
    called in the reflector's thread, and must return at once.
    """

    def __init__(
        self,
        api: Api,
        kind: type[T],
        path: str,
        labels: str,
        complete: Callable[[type, Sequence[Kept]], None],
        changed: Callable[[type, Kept], None],
        pace: Pace,
    ) -> None:
        self._api = api
        self._kind = kind
        self._path = path
        self._labels = labels
        self._complete = complete
        self._changed = changed
        self._pace = pace
        self._loop = Loop(
            f"the watch of {path}",
            0.0,
            meanwhile="changes are found by the looks that are due",
            retry_s=(pace.first_s, pace.most_s),
        )
        self._stream: Watch | None = None
        self._version: str | None = None
        """The version where the next watch begins; ``None``: with a list."""
        self._listed_at, self.lists = -float("inf"), 0
        self.problem: str | None = "it has only begun"
        """The reason why it sees nothing now; may be read from any thread."""

    def leave(self) -> None:
        """End the watch that is under way, even while it waits. From any thread."""
        if self._stream is not None:
            self._stream.close()

    def run(self, over: threading.Event) -> None:
        """Until ``over`` is set (call ``leave`` then). Raises nothing."""
        self._loop.run_in_thread(lambda: self._turn(over), over)

    def _turn(self, over: threading.Event) -> float:
        """One list if it is due, and one watch. Returns the seconds to wait after it."""
        try:
            if self._version is None or time.monotonic() - self._listed_at >= self._pace.list_s:
                self._list()
            return self._watch(over)
        except Exception as error:
            if over.is_set():
                return 0.0
            self.problem = str(error) or type(error).__name__
            if not isinstance(error, Throttled | _TooShort):
                self._version = None
            raise

    def _list(self) -> None:
        self._version = None
        self.lists += 1
        found = self._api.listing(self._path, self._kind, labels=self._labels, keep=KEPT[self._kind])
        self._complete(self._kind, found.items)
        self._version, self._listed_at = found.resource_version, time.monotonic()

    def _watch(self, over: threading.Event) -> float:
        """One watch until it ends or is left; the seconds to wait after it. Raises ``ApiError``."""
        began, heard = time.monotonic(), False
        with self._api.watch(
            self._path,
            labels=self._labels,
            resource_version=self._version or "",
            timeout_s=round(CHANCE.uniform(*self._pace.watch_s)),
            silence_s=self._pace.silence_s,
        ) as self._stream:
            self.problem = None
            if over.is_set():  # set before anybody could close this one
                self.leave()
            for event in self._stream:
                heard = heard or event.type != "BOOKMARK"
                self._take(event)
                if time.monotonic() - began >= self._pace.healthy_s:
                    self._loop.failures.worked()
        lasted = time.monotonic() - began
        if not heard and lasted < self._pace.short_s and not over.is_set():
            raise _TooShort(f"the Kubernetes API ends each watch at once: watch {self._path}")
        return max(0.0, self._pace.short_s - lasted)

    def _take(self, event: WatchEvent) -> None:
        if event.type != "BOOKMARK":
            found = KEPT[self._kind](decode(self._kind, event.object))
            self._changed(self._kind, Kept(found.uid) if event.type == "DELETED" else found)
        self._version = event.resource_version

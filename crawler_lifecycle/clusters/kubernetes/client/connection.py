"""One connection to the Kubernetes API for a whole process: bytes, or an error for anything else.

Every call has a time limit for connecting, for silence, and for the whole answer. Temporal decides about retries. Only
three calls are repeated here, none of which may have taken effect: after a 401 once, with credentials read again; a
list whose pages are of different versions (410), from its beginning; and a page that is too long, with half as many
objects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote

from crawler_lifecycle.background import CHANCE

from . import credentials
from .errors import Asked, Expired, TooLarge, unreadable
from .objects import ListPage, decode_kind, decode_page
from .transport import Wire
from .watches import Watch, WatchEvent

logger = logging.getLogger(__name__)

__all__ = ["Api", "Listing", "Watch", "WatchEvent"]

T = TypeVar("T")
K = TypeVar("K")

#: Connections that are kept open; further parallel calls open more, which are closed afterwards.
CONNECTIONS = 32
#: How often a list with inconsistent pages begins again, and how many pages a list may have.
LIST_STARTS, PAGES_MAX = 3, 4000
#: A page with less than this part of the longest answer is short: twice as many objects will fit.
SHORT = 4

_PATCH = "application/strategic-merge-patch+json"


@dataclass(slots=True)
class Listing(Generic[T]):
    """A complete list, as it was at one moment."""

    items: list[T] = field(default_factory=list)
    resource_version: str = ""
    """The version from which a watch continues."""


class Which(TypedDict, total=False):
    """Selects the objects of a list, and says how it is read."""

    labels: str | None
    fields: str | None
    limit: int
    """Objects of one page, 500 by default."""
    within_s: float | None
    """Seconds that all pages may take together."""


class Api:
    """The Kubernetes API. Thread-safe, one for a process. All methods but ``close`` raise ``ApiError``, and so does a
    watch while it is read."""

    def __init__(
        self,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        namespace: str,
        connect_s: float = 3.0,
        read_s: float = 10.0,
    ) -> None:
        """Connect by a kubeconfig (see ``credentials.find``) or as our own pod.

        Sends nothing yet. Raises ``InvalidRequest`` that names the kubeconfig and its error.
        """
        access = credentials.Access(credentials.find(kubeconfig, context), CONNECTIONS)
        self.namespace = namespace
        self.host = access.host
        """The server's address."""
        self.source = access.source.words
        """The source of address and credentials, in words."""
        self._wire = Wire(access, connect_s, read_s)
        self._fitted: dict[str, int] = {}
        """Objects that fitted into one answer lately, by path; without an entry: as many as one asks for."""

    @property
    def skew_s(self) -> float | None:
        """The server's clock minus ours at the last answer, in seconds; servers send whole seconds."""
        return self._wire.skew_s

    def close(self) -> None:
        """End all calls, and close the connections."""
        self._wire.close()

    # --- paths --------------------------------------------------------------------------------------------------------

    def jobs_path(self, name: str | None = None) -> str:
        return self.path("jobs", name, group="/apis/batch/v1")

    def pods_path(self, name: str | None = None, sub: str | None = None) -> str:
        """``sub`` is ``log``, ``eviction`` and the like."""
        return self.path("pods", name) + (f"/{sub}" if sub else "")

    def events_path(self) -> str:
        return self.path("events")

    def namespace_path(self, group: str = "/api/v1") -> str:
        """The namespace itself; with a group, where the namespace's objects of that group are."""
        return f"{group}/namespaces/{quote(self.namespace, safe='')}"

    def path(self, resource: str, name: str | None = None, *, group: str = "/api/v1") -> str:
        """The path of the objects of a kind in our namespace, or of the object of that name."""
        tail = f"/{quote(name, safe='')}" if name is not None else ""
        return f"{self.namespace_path(group)}/{resource}{tail}"

    # --- one object ---------------------------------------------------------------------------------------------------

    def get(self, path: str, **query: object) -> bytes:
        """An object, or any other JSON document at this path."""
        return _checked(Asked("GET", path), self._wire.call(Asked("GET", path), query))

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        dry_run: bool = False,
        left_s: Callable[[], float] | None = None,
        **query: object,
    ) -> bytes:
        """Create. A field that the server does not know is refused, not dropped in silence.

        ``left_s`` is called at the moment of sending: for how many seconds it may still be created; the server gives up
        then. Raises ``TooLate`` when the time is over before it is sent.
        """
        asked = Asked("POST", path)
        query = {"fieldValidation": "Strict", "dryRun": "All" if dry_run else None, **query}
        return _checked(asked, self._wire.call(asked, query, body=body, left_s=left_s))

    def patch(self, path: str, body: Mapping[str, Any], **query: object) -> bytes:
        """Change a part, by a strategic merge patch."""
        asked = Asked("PATCH", path)
        return _checked(asked, self._wire.call(asked, query, body=body, content=_PATCH))

    def delete(self, path: str, options: Mapping[str, Any]) -> bytes:
        """Ask for a deletion. ``options`` are DeleteOptions; say the propagation policy and the uid, always."""
        asked = Asked("DELETE", path)
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        return _checked(asked, self._wire.call(asked, {}, body=body))

    def read(self, path: str, **query: object) -> bytes:
        """Bytes of any kind: a log. Nothing is assumed about them but that all of them came."""
        return self._wire.call(Asked("GET", path), query, accept="*/*")

    # --- lists --------------------------------------------------------------------------------------------------------

    @overload
    def listing(self, path: str, kind: type[T], **which: Unpack[Which]) -> Listing[T]: ...

    @overload
    def listing(self, path: str, kind: type[T], *, keep: Callable[[T], K], **which: Unpack[Which]) -> Listing[K]: ...

    def listing(
        self, path: str, kind: type[Any], *, keep: Callable[[Any], Any] | None = None, **which: Unpack[Which]
    ) -> Listing[Any]:
        """All objects of ``kind`` (``Job``, ``Pod``, ``Event``, ``Named``) at one moment, read at the newest version.

        Pages are decoded one after the other, and only the result of ``keep`` stays of each object, so that a long list
        needs little memory.
        """
        asked, limit = Asked("GET", path), which.get("limit", 500)
        query = {"labelSelector": which.get("labels"), "fieldSelector": which.get("fields"), "limit": limit}
        until = time.monotonic() + (which.get("within_s") or 2 * self._wire.whole_s)
        for _ in range(LIST_STARTS - 1):
            try:
                return self._once(asked, query, until, kind, keep)
            except Expired:  # its pages would be of different moments: an object could be in two of them, or in none
                time.sleep(CHANCE.uniform(0, 0.1))
        return self._once(asked, query, until, kind, keep)

    def _once(
        self,
        asked: Asked,
        query: Mapping[str, object],
        until: float,
        kind: type[Any],
        keep: Callable[[Any], Any] | None,
    ) -> Listing[Any]:
        """The pages of one list. Raises ``Expired`` when they do not belong together."""
        found: Listing[Any] = Listing()
        names: set[tuple[str | None, str]] = set()
        token, tokens = None, set[str]()
        for _ in range(PAGES_MAX):
            data = self._page(asked, {**query, "continue": token}, until)
            if data is None:
                continue
            page = decode_page(kind, data, asked)
            _belongs(asked, found, page, names)
            found.items.extend(map(keep, page.items) if keep else page.items)
            if not (token := page.metadata.continue_):
                if page.metadata.remaining_item_count:
                    raise unreadable(asked, f"{page.metadata.remaining_item_count} objects remain, and no page follows")
                return found
            if token in tokens:
                raise unreadable(asked, "its pages go round in a circle")
            tokens.add(token)
        raise unreadable(asked, f"it has more than {PAGES_MAX} pages")

    def _page(self, asked: Asked, query: Mapping[str, object], until: float) -> bytes | None:
        """One page, or ``None`` when it was too long: the next try asks for half as many objects.

        The number that fits is remembered for the next list, and grows again while pages are short. Large objects of
        one run may make lists longer, but never hide the objects of others.
        """
        most = int(str(query["limit"]))
        size = min(most, self._fitted.get(asked.path, most))
        try:
            data = self._wire.call(asked, {**query, "limit": size}, until=until)
        except TooLarge:
            if size == 1:
                raise
            self._fitted[asked.path] = size // 2
            logger.info("too long an answer: %s; %d objects at once from now on", asked.gesture, size // 2)
            return None
        if size < most and len(data) < self._wire.answer_max // SHORT:
            self._fitted[asked.path] = size * 2
        return data

    # --- watches ------------------------------------------------------------------------------------------------------

    def watch(
        self,
        path: str,
        *,
        labels: str | None = None,
        resource_version: str,
        timeout_s: float,
        silence_s: float | None = None,
    ) -> Watch:
        """Watch changes after ``resource_version``, bookmarks included, until the server ends it after ``timeout_s``.

        The stream raises an error when nothing came for ``silence_s`` (by default half a minute more than the server's
        own limit). Close it when you stop reading; ``close`` may come from another thread.
        """
        asked = Asked("GET", path, watching=True)
        query = {
            **{"watch": True, "allowWatchBookmarks": True, "resourceVersion": resource_version},
            **{"timeoutSeconds": max(1, round(timeout_s)), "labelSelector": labels},
        }
        silence = silence_s if silence_s is not None else timeout_s + 30
        call, response = self._wire.stream(asked, query, silence, timeout_s + 60)
        return Watch(asked, response, call, self._wire.ended)


def _belongs(asked: Asked, found: Listing[Any], page: ListPage[Any], names: set[tuple[str | None, str]]) -> None:
    """Check that a page is of the same version as those before it, and repeats none of their objects. Raises
    ``Expired``.
    """
    moment = page.metadata.resource_version or ""
    if not found.resource_version:
        if not moment:
            raise unreadable(asked, "the list has no resourceVersion")
        found.resource_version = moment
    elif moment != found.resource_version:
        raise Expired(f"the pages to {asked.gesture} are of two moments: {found.resource_version} and {moment}")
    for item in page.items:
        key = (item.metadata.namespace, item.metadata.name)
        if key in names:
            raise Expired(f"the pages to {asked.gesture} overlap: {item.metadata.name} is there twice")
        names.add(key)


def _checked(asked: Asked, data: bytes) -> bytes:
    """The bytes, checked to be one complete object of the API. Raises ``Unreadable``."""
    if asked.path.startswith(("/api/", "/apis/")):
        decode_kind(data, asked)
    return data

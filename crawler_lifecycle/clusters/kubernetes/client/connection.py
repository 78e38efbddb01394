"""The Kubernetes API, shared by a whole process. A call returns bytes, or raises an error.

Every call has a time limit for connecting, for silence, and for the whole response. Temporal
handles retries. Only three kinds of calls are repeated here, and none of them can have had an
effect:

- after a 401: once, with newly read credentials
- a list whose pages have different versions (410): from the beginning of the list
- a page that is too large: with half as many objects
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote

from crawler_lifecycle.background import CHANCE

from . import credentials
from .errors import ApiRequest, PositionExpired, TooLarge, unreadable
from .objects import ListPage, decode_kind, decode_page
from .transport import Wire
from .watches import Watch, WatchEvent

logger = logging.getLogger(__name__)

__all__ = ["Api", "Listing", "Watch", "WatchEvent"]

T = TypeVar("T")
K = TypeVar("K")

#: The maximum number of connections that stay open. More parallel calls open further connections,
#: which are closed afterwards.
CONNECTIONS = 32
#: The maximum number of starts of a list whose pages are inconsistent, and the maximum number of
#: pages in a list.
LIST_STARTS = 3
PAGES_MAX = 4000
#: A page is short if it has less than ``ANSWER_MAX / SHORT`` bytes; the next page may then have
#: twice as many objects.
SHORT = 4

_PATCH = "application/strategic-merge-patch+json"


@dataclass(slots=True)
class Listing(Generic[T]):
    """A complete list of the objects at one point in time."""

    items: list[T] = field(default_factory=list)
    resource_version: str = ""
    """The version from which a watch can continue."""


class Which(TypedDict, total=False):
    """Options of a list: which objects it selects, and how it is read."""

    labels: str | None
    fields: str | None
    limit: int
    """The maximum number of objects in a page, 500 by default."""
    within_s: float | None
    """The time limit for all pages together, in seconds."""


class Api:
    """The Kubernetes API, one object per process; thread-safe.

    All methods except ``close`` raise ``ApiError``. Reading a watch also raises ``ApiError``.
    """

    def __init__(
        self,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        namespace: str,
        connect_timeout_s: float = 3.0,
        read_timeout_s: float = 10.0,
    ) -> None:
        """Load the credentials from a kubeconfig or our own pod (see ``credentials.find``), without
        sending a request.

        Raises ``InvalidRequest``, which names the kubeconfig and its error.
        """
        access = credentials.Access(credentials.find(kubeconfig, context), CONNECTIONS)
        self.namespace = namespace
        self.host = access.host
        """The server's address."""
        self.source = access.source.words
        """A human-readable description of where the address and credentials come from."""
        self._wire = Wire(access, connect_timeout_s, read_timeout_s)
        self._fitted: dict[str, int] = {}
        """Path -> the maximum number of objects in its next page. A path without an entry has no
        such limit.
        """

    @property
    def skew_s(self) -> float | None:
        """The server's clock minus ours at the last response, in seconds.

        Servers send whole seconds only.
        """
        return self._wire.skew_s

    def close(self) -> None:
        """End all calls, and close the connections."""
        self._wire.close()

    # --- paths ------------------------------------------------------------------------------------

    def jobs_path(self, name: str | None = None) -> str:
        return self.path("jobs", name, group="/apis/batch/v1")

    def pods_path(self, name: str | None = None, sub: str | None = None) -> str:
        """Return the path of all pods, of one pod, or of its subresource ``sub``, such as
        ``log``.
        """
        return self.path("pods", name) + (f"/{sub}" if sub else "")

    def namespace_path(self, group: str = "/api/v1") -> str:
        """Return the path of the namespace in the API group ``group``; the paths of the namespace's
        objects start with this path.
        """
        return f"{group}/namespaces/{quote(self.namespace, safe='')}"

    def path(self, resource: str, name: str | None = None, *, group: str = "/api/v1") -> str:
        """Return the path of this resource in our namespace, or of the resource's object
        ``name``.
        """
        tail = f"/{quote(name, safe='')}" if name is not None else ""
        return f"{self.namespace_path(group)}/{resource}{tail}"

    # --- one object -------------------------------------------------------------------------------

    def get(self, path: str, **query: object) -> bytes:
        """Return the object, or any other JSON document, at this path."""
        return self._object("GET", path, query)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        dry_run: bool = False,
        left_s: Callable[[], float] | None = None,
        **query: object,
    ) -> bytes:
        """Create an object.

        The server refuses unknown fields instead of ignoring them.

        ``left_s`` returns the seconds left for the creation. This function is called when the
        request is sent, and the server gives up when those seconds have elapsed. Raises ``TooLate``
        when no time is left before the request is sent.
        """
        query = {"fieldValidation": "Strict", "dryRun": "All" if dry_run else None, **query}
        return self._object("POST", path, query, body=body, left_s=left_s)

    def patch(self, path: str, body: Mapping[str, Any], **query: object) -> bytes:
        """Change part of an object with a strategic merge patch, and return the object."""
        return self._object("PATCH", path, query, body=body, content=_PATCH)

    def delete(self, path: str, options: Mapping[str, Any]) -> bytes:
        """Request a deletion.

        ``options`` are DeleteOptions, always with the propagation policy and the uid.
        """
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        return self._object("DELETE", path, {}, body=body)

    def _object(self, method: str, path: str, query: Mapping[str, object], **options: Any) -> bytes:
        """Return the response of a call if it is one complete API object. Raises
        ``Unreadable``.
        """
        asked = ApiRequest(method, path)
        data = self._wire.call(asked, query, **options)
        if path.startswith(("/api/", "/apis/")):
            decode_kind(data, asked)
        return data

    def read(self, path: str, **query: object) -> bytes:
        """Return a response that need not be JSON, such as a log.

        Only the completeness of the response is checked.
        """
        return self._wire.call(ApiRequest("GET", path), query, accept="*/*")

    # --- lists ------------------------------------------------------------------------------------

    @overload
    def listing(self, path: str, kind: type[T], **which: Unpack[Which]) -> Listing[T]: ...

    @overload
    def listing(
        self, path: str, kind: type[T], *, keep: Callable[[T], K], **which: Unpack[Which]
    ) -> Listing[K]: ...

    def listing(
        self,
        path: str,
        kind: type[Any],
        *,
        keep: Callable[[Any], Any] | None = None,
        **which: Unpack[Which],
    ) -> Listing[Any]:
        """Return all objects of ``kind`` (``Job``, ``Pod``, ``Event``, ``Named``) at the newest
        version.

        Pages are decoded one after another. Only the result of ``keep`` for each object stays in
        memory, so that a long list needs little memory.
        """
        asked = ApiRequest("GET", path)
        limit = which.get("limit", 500)
        query = {
            "labelSelector": which.get("labels"),
            "fieldSelector": which.get("fields"),
            "limit": limit,
        }
        until = time.monotonic() + (which.get("within_s") or 2 * self._wire.whole_s)
        for _ in range(LIST_STARTS - 1):
            try:
                return self._once(asked, query, until, kind, keep)
            # Pages with different versions may contain an object twice, or not at all.
            except PositionExpired:
                time.sleep(CHANCE.uniform(0, 0.1))
        return self._once(asked, query, until, kind, keep)

    def _once(
        self,
        asked: ApiRequest,
        query: Mapping[str, object],
        until: float,
        kind: type[Any],
        keep: Callable[[Any], Any] | None,
    ) -> Listing[Any]:
        """Read the pages of one list.

        Raises ``PositionExpired`` when their versions differ.
        """
        found: Listing[Any] = Listing()
        names: set[tuple[str | None, str]] = set()
        token = None
        tokens = set[str]()
        for _ in range(PAGES_MAX):
            data = self._page(asked, {**query, "continue": token}, until)
            if data is None:
                continue
            page = decode_page(kind, data, asked)
            del data  # the page is large, so free its memory before the next page is read
            _belongs(asked, found, page, names)
            found.items.extend(map(keep, page.items) if keep else page.items)
            if not (token := page.metadata.continue_):
                if page.metadata.remaining_item_count:
                    raise unreadable(
                        asked,
                        f"{page.metadata.remaining_item_count} objects remain, but no page follows",
                    )
                return found
            if token in tokens:
                raise unreadable(asked, "a page of the list was repeated")
            tokens.add(token)
        raise unreadable(asked, f"the list has more than {PAGES_MAX} pages")

    def _page(self, asked: ApiRequest, query: Mapping[str, object], until: float) -> bytes | None:
        """Read one page. Return ``None`` when the page was too large; the next request then asks
        for half as many objects.

        The number that fits is remembered for the next list, and grows again while pages are short.
        So the large objects of one run slow a list down, but never hide the objects of other runs.
        """
        most = int(str(query["limit"]))
        size = min(most, self._fitted.get(asked.path, most))
        try:
            data = self._wire.call(asked, {**query, "limit": size}, until=until)
        except TooLarge:
            if size == 1:
                raise
            self._fitted[asked.path] = size // 2
            logger.info(
                "the response was too long: %s; the next page asks for %d objects",
                asked.gesture,
                size // 2,
            )
            return None
        if size < most and len(data) < self._wire.answer_max // SHORT:
            self._fitted[asked.path] = size * 2
        return data

    # --- watches ----------------------------------------------------------------------------------

    def watch(
        self,
        path: str,
        *,
        labels: str | None = None,
        resource_version: str,
        timeout_s: float,
        silence_s: float | None = None,
    ) -> Watch:
        """Watch for changes after ``resource_version``, with bookmarks.

        The server ends the watch after ``timeout_s``.

        The stream raises an error when nothing arrives for ``silence_s`` (by default 30 s more than
        ``timeout_s``). Close the stream when you stop reading; any thread may close the stream.
        """
        asked = ApiRequest("GET", path, watching=True)
        query = {
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": max(1, round(timeout_s)),
            "labelSelector": labels,
        }
        silence = silence_s if silence_s is not None else timeout_s + 30
        call, response = self._wire.stream(asked, query, silence, timeout_s + 60)
        return Watch(asked, response, call, self._wire.ended)


def _belongs(
    asked: ApiRequest, found: Listing[Any], page: ListPage[Any], names: set[tuple[str | None, str]]
) -> None:
    """Raise ``PositionExpired`` unless the page has the same version as the earlier pages and
    repeats none of their objects.
    """
    moment = page.metadata.resource_version or ""
    if not found.resource_version:
        if not moment:
            raise unreadable(asked, "the list has no resourceVersion")
        found.resource_version = moment
    elif moment != found.resource_version:
        raise PositionExpired(
            f"{asked.gesture}: two pages have different versions: {found.resource_version} and "
            f"{moment}"
        )
    keys = [(item.metadata.namespace, item.metadata.name) for item in page.items]
    if not names.isdisjoint(new := set(keys)) or len(new) < len(keys):
        twice = Counter([*names, *keys]).most_common(1)[0][0]
        raise PositionExpired(f"{asked.gesture}: the pages overlap: {twice[1]} is in them twice")
    names |= new

"""Calls functions of graphs in a host process, and returns the results to record."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

from crawler_lifecycle.domain import values
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run_data import AskedFiles
from crawler_lifecycle.features.graphs.domain.checks import shown
from crawler_lifecycle.features.graphs.domain.pages import encode_pages
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec
from crawler_lifecycle.graphs.asking import use
from crawler_lifecycle.graphs.calling import Meant, NotCallable, execute
from crawler_lifecycle.graphs.job import Cancel, Job, Record, Snooze
from crawler_lifecycle.graphs.platform import Document, PlatformUnavailable, nested

from . import loading
from .wire import Pipes, read_frames, write_frames

#: The maximum number of characters in a reason.
REASON_MAX = 1000
#: The maximum number of characters in a graph that the class of a manager starts. A message to the
#: worker has three bytes for each character.
GRAPH_MAX = 1024 * 1024


class Caller:
    """Calls functions, one at a time.

    ``given`` and ``result`` are descriptors of files that the worker has opened.
    """

    def __init__(self, pipes: Pipes, given: int, result: int) -> None:
        self._worker = _Worker(pipes, given, result)
        self._folder = os.getcwd()

    def call(self, message: Document) -> Document:
        """Execute a step's function and return the reply for the worker."""
        me = os.getpid()
        os.chdir(self._folder)  # an earlier function may have changed the folder
        job = Job.of(message["graph"], message["job"])
        own = _OwnGraph(self._worker, job.graph)
        use(own)
        name = message["function"]
        what = message["job"]["job"]
        try:
            found = execute(
                name, what, job, lambda: self._context(message["given"]), graft=message["graft"]
            )
            if os.getpid() == me:
                return self._kept(found, message, own)
        except NotCallable as error:
            return {"kind": "failed", "error": str(error), "for_good": True}
        except BaseException as error:  # sys.exit() must not end this process
            return {"kind": "failed", "error": loading.reported(error), "for_good": False}
        os._exit(0)  # the user's code has forked, and this process is the copy

    def _context(self, size: int) -> Document:
        """Return the merged contexts (inner values override outer ones), and the results of
        dependencies by name.
        """
        context: Document = {}
        results: Document = {}
        for head, value in self._worker.frames(size):
            if head["path"]:
                results["/".join(head["path"])] = value
            else:
                context |= value
        return context | (nested(results, "") or {})

    def _kept(self, found: Meant, message: Document, own: _OwnGraph) -> Document:
        """Return the reply, and write a value to record into the file. Raises ``NoValue``."""
        if isinstance(found, Cancel):
            return {"kind": "cancel", "reason": str(found.reason)[:REASON_MAX]}
        if isinstance(found, Snooze):
            return {"kind": "snooze", "seconds": found.seconds}
        if isinstance(found, Record):
            data = values.encode(
                found.value, "the return value", min(found.limit, message["limit"])
            )
            return {"kind": "value", "bytes": self._worker.put([({}, [data])])}
        if found is not None:
            path = message["job"]["path"]
            own.graft(
                message["graph"],
                path,
                message["job"]["attempt"],
                found.part(f"graft of step {shown(path)}"),
            )
        return {"kind": "done"}


def _read(head: Document, data: bytes) -> Any:
    try:
        return values.decode(data)
    except values.NoValue as error:
        what = "/".join(head["path"]) or "the context"
        raise values.NoValue(f"{what}: {error}") from None


class _Worker:
    """Asks the worker questions, from any thread. Large values are passed in the two files."""

    def __init__(self, pipes: Pipes, given: int, result: int) -> None:
        self.ask = pipes.ask
        self._given = given
        self._result = result
        self._one = threading.RLock()

    def ask_much(self, name: str, **arguments: Any) -> list[tuple[Document, Any]]:
        """Ask a question, and return the values of the answer from the file."""
        with self._one:
            return self.frames(self.ask(name, **arguments))

    def tell_much(self, name: str, parts: Iterable[bytes], /, **arguments: Any) -> Any:
        """Ask a question with parts of any size, which are passed in the file."""
        with self._one:
            return self.ask(name, bytes=self.put(({}, [part]) for part in parts), **arguments)

    def frames(self, size: int) -> list[tuple[Document, Any]]:
        found = (
            (json.loads(head), b"".join(chunks)) for head, chunks in read_frames(self._given, size)
        )
        return [(head, _read(head, data)) for head, data in found]

    def put(self, frames: Iterable[tuple[Document, Sequence[bytes]]]) -> int:
        return write_frames(self._result, frames, sys.maxsize)


class HookGraphs:
    """``Platform`` for the class of a manager, which can only start graphs."""

    only_starts = True

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def send(self, key: str, spec: GraphSpec, *, name: str | None, tags: Sequence[str]) -> bool:
        pages = [page.decode() for page in encode_pages(spec)]
        if sum(map(len, pages)) > GRAPH_MAX:
            raise InvalidRequest(
                f"steps: more than {GRAPH_MAX} characters; start large graphs from a graph's step"
            )
        return bool(self._ask("start_graph", pages=pages, **_started(key, spec, name, tags)))

    def __getattr__(self, name: str) -> Any:
        raise PlatformUnavailable(
            f"{name}: the class of a manager can only start graphs; ask about them elsewhere"
        )


class _OwnGraph(AskedFiles):
    """``Platform`` for a function that is executing.

    This platform starts graphs, and answers questions about the function's own graph."""

    only_starts = True

    def __init__(self, worker: _Worker, key: str) -> None:
        super().__init__(worker.ask)
        self._worker = worker
        self._key = key

    def status(self, key: str) -> Document | None:
        return cast(Document | None, self._of(key).ask("status"))

    def jobs(self, key: str, paths: Sequence[str] | None) -> list[Document]:
        found: list[Document] = []
        after: int | None = -1
        while after is not None:
            page = self._of(key).ask("jobs", paths=paths, after=after)
            found += page["jobs"]
            after = page["after"]
        return found

    def recorded(self, key: str, paths: Sequence[str] | None) -> Document:
        return {
            "/".join(head["path"]): value
            for head, value in self._of(key).ask_much("recorded", paths=paths)
        }

    def context(self, key: str, path: str) -> Document | None:
        found = self._of(key).ask_much("context", path=path)
        return (
            {name: value for _, context in found for name, value in context.items()}
            if found
            else None
        )

    def cancel(self, key: str, paths: Sequence[str] | None, reason: str | None) -> int:
        return int(self._of(key).ask("cancel", paths=paths, reason=reason))

    def retry(self, key: str, paths: Sequence[str] | None, *, cascade: bool, fresh: bool) -> int:
        return int(self._of(key).ask("retry", paths=paths, cascade=cascade, fresh=fresh))

    def append(self, key: str, spec: GraphSpec) -> int:
        return int(self._of(key).tell_much("append", encode_pages(spec)))

    def graft(self, key: str, path: str, attempt: int, spec: GraphSpec) -> None:
        self._of(key).tell_much("graft", encode_pages(spec), path=path, attempt=attempt)

    def cancelled(self, key: str, path: str, attempt: int) -> bool:
        return bool(self._of(key).ask("cancelled", path=path, attempt=attempt))

    def crawls(self, key: str, paths: Sequence[str]) -> list[Document]:
        return list(self._of(key).ask("crawls", paths=paths))

    def send(self, key: str, spec: GraphSpec, *, name: str | None, tags: Sequence[str]) -> bool:
        return bool(
            self._worker.tell_much("start", encode_pages(spec), **_started(key, spec, name, tags))
        )

    def find(self, **_: Any) -> list[Document]:
        raise _elsewhere("list graphs")

    def wait(self, key: str, timeout_s: float | None) -> Document:
        raise _elsewhere("wait for a graph")

    def _of(self, key: str) -> _Worker:
        if key != self._key:
            raise _elsewhere(f"ask about graph {key}")
        return self._worker


def _started(key: str, spec: GraphSpec, name: str | None, tags: Sequence[str]) -> Document:
    return {"key": key, "name": name, "tags": list(tags), "options": asdict(spec.options)}


def _elsewhere(what: str) -> PlatformUnavailable:
    return PlatformUnavailable(
        f"a function of a graph cannot {what}; it can start graphs, and read and change its own"
    )

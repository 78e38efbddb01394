"""Logs of tasks in pods: the output of the crawler's container, as its node keeps it.

Positions are bytes from the beginning of the log that the node still has. The API cannot begin at a byte, only at a
second (``sinceTime``), and end after some bytes (``limitBytes``). So every reading requests the time of each line. Of
each log one line is remembered, with its position and its time, and the next reading begins there. A process that
remembers nothing reads from the beginning again. The node limits this: it returns the current file only (10 MiB, unless
the cluster says otherwise).

When that file was rotated, the remembered line is not the first of its second any more, or the place is beyond the end:
reading goes on at the beginning of the new file, as the port promises.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, Refused
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.looks.details import is_no_log
from crawler_lifecycle.clusters.kubernetes.looks.listing import is_of, key_of, list_pods, of_tasks
from crawler_lifecycle.clusters.kubernetes.looks.predicates import (
    began,
    crawler_container,
    deciding_pod,
    ended,
    owner_of,
)
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef

#: The most bytes that one reading requests from a node. Later bytes are not reached.
ASK_MAX = 48 * 1024 * 1024
#: Number of logs of which a line is remembered.
REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class _Line:
    """The position of a line that is the first of its second, and its full time. ``""``: the beginning of the log."""

    place: int = 0
    stamp: bytes = b""

    @property
    def second(self) -> str | None:
        return self.stamp[:19].decode() + "Z" if self.stamp else None


@dataclass(slots=True)
class _Piece:
    """A piece of log without its stamps."""

    data: bytes
    whole: bool
    """True when it reaches the end of the log."""
    lines: list[_Line] = field(default_factory=list)
    """The lines that are the first of their second."""


class PodLogs:
    """Implements ``TaskLogs`` for the pods of one namespace; thread-safe."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """At most ``limit`` bytes from ``after`` on, or the last ones. Raises ``ClusterUnavailable``."""
        # The pod is read first: what is written between the two requests is then still read.
        pod = self._pod(run, task)
        if pod is None:
            return None
        over = ended(pod)
        if not began(crawler_container(pod)):
            return LogPart(b"", 0, True) if over else None
        try:
            return self._part(pod, after, limit, over)
        except (NotFound, Refused) as error:  # its node has no log of it (any more), or the pod disappeared meanwhile
            if error.status == 403:  # we may not read it, which says nothing about its content
                raise
            return LogPart(b"", 0, True) if over else None

    def _pod(self, run: RunRef, task: TaskRef) -> Pod | None:
        key = (run.run_id, task.index, task.attempt)
        pods = list_pods(self._api, of_tasks(run.run_id, [task], settled=None))
        return deciding_pod(p for p in pods if key_of(p.metadata) == key and is_of(run, task, owner_of(p), p.metadata))

    def _part(self, pod: Pod, after: int | None, limit: int, over: bool) -> LogPart:
        if after is None:
            piece = self._piece(pod, _Line(), ASK_MAX)
            place = max(0, len(piece.data) - limit)
            return self._answer(pod, _Line(), piece, place, limit, over)
        begin = self._remembered(pod, after)
        piece = self._piece(pod, begin, after - begin.place + limit)
        if begin.stamp and (not piece.lines or piece.lines[0] != begin):
            begin = _Line()  # rotated, or lost together with its node
            piece = self._piece(pod, begin, after + limit)
        if after > begin.place + len(piece.data):
            begin, after = _Line(), 0
            piece = self._piece(pod, begin, limit)
        return self._answer(pod, begin, piece, after, limit, over)

    def _answer(self, pod: Pod, begin: _Line, piece: _Piece, place: int, limit: int, over: bool) -> LogPart:
        data = piece.data[place - begin.place : place - begin.place + limit]
        end = place + len(data)
        last = next((line for line in reversed(piece.lines) if line.place <= end), None)
        if last is not None:
            self._remember(pod, last)
        return LogPart(data, end, over and piece.whole and end == begin.place + len(piece.data))

    def _piece(self, pod: Pod, begin: _Line, wanted: int) -> _Piece:
        """At least ``wanted`` bytes from a line on, if there are so many. The size of the time stamps is not known
        before.
        """
        ask = min(2 * wanted + 4096, ASK_MAX)
        while True:
            raw = self._api.read(
                self._api.pods_path(pod.metadata.name, "log"),
                container=labels.CONTAINER,
                timestamps=True,
                limitBytes=ask,
                sinceTime=begin.second,
            )
            if is_no_log(raw):
                raise NotFound("its node has no log of the container (any more)")
            piece = _without_stamps(raw, begin.place, whole=len(raw) < ask)
            if piece.whole or len(piece.data) >= wanted or ask >= ASK_MAX:
                return piece
            ask = min(ask * 4, ASK_MAX)

    def _remembered(self, pod: Pod, after: int) -> _Line:
        with self._lock:
            line = self._lines.get(pod.metadata.uid)
        return line if line is not None and line.place <= after else _Line()

    def _remember(self, pod: Pod, line: _Line) -> None:
        with self._lock:
            self._lines[pod.metadata.uid] = line
            self._lines.move_to_end(pod.metadata.uid)
            while len(self._lines) > REMEMBERED:
                self._lines.popitem(last=False)


def _without_stamps(raw: bytes, place: int, *, whole: bool) -> _Piece:
    """Every line begins with its time and a space. The last one may be cut, also within its time."""
    parts, lines, second = [], [], b""
    for line in io.BytesIO(raw):  # because it splits at line feeds only
        stamp, space, text = line.partition(b" ")
        if not space:
            break  # cut within its time
        if stamp[:19] != second:
            second = stamp[:19]
            lines.append(_Line(place, stamp))
        parts.append(text)
        place += len(text)
    return _Piece(b"".join(parts), whole, lines)

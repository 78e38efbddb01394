"""Logs of tasks in pods: the output of the crawler's container, which its node keeps.

A position is a number of bytes from the beginning of the log file that the node still has. The API
cannot begin at a byte, only at a second (``sinceTime``), but it can end after a number of bytes
(``limitBytes``). So every request asks for the time of each line. For each log we remember one line
with its position and time, and the next request begins there. A process that remembers no line
reads from the beginning. The node returns only the current file (10 MiB by default).

After that file was rotated, the remembered line is no longer the first of its second, or the
position is beyond the end. Then reading continues at the beginning of the new file, as the port
promises.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, RequestRefused
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.polls.details import is_no_log
from crawler_lifecycle.clusters.kubernetes.polls.listing import is_of, key_of, list_pods, of_tasks
from crawler_lifecycle.clusters.kubernetes.polls.predicates import (
    began,
    crawler_container,
    deciding_pod,
    ended,
    owner_of,
)
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef

#: The maximum number of bytes that one request asks a node for. No byte beyond this number can be
#: read.
ASK_MAX = 48 * 1024 * 1024
#: The maximum number of logs for which a line is remembered.
REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class _Line:
    """The position and time stamp of a line that is the first of its second.

    An empty stamp means the log's beginning.
    """

    position: int = 0
    stamp: bytes = b""

    @property
    def second(self) -> str | None:
        return self.stamp[:19].decode() + "Z" if self.stamp else None


@dataclass(slots=True)
class _Piece:
    """Part of a log, from which the time stamps have been removed."""

    data: bytes
    whole: bool
    """True when this part reaches the end of the log."""
    lines: list[_Line]
    """The first line of each second."""


class PodLogs:
    """The logs of the pods of one namespace.

    This class implements ``TaskLogs``, and is thread-safe.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    def read(self, run: RunRef, task: TaskRef, after: int | None, limit: int) -> LogPart | None:
        """Return at most ``limit`` bytes after the position ``after``, or the last bytes if there
        is not a position.

        Raises ``ClusterUnavailable``.
        """
        # Read the pod first. If it has already ended, the log that we read afterwards is complete.
        pod = self._pod(run, task)
        if pod is None:
            return None
        over = ended(pod)
        if not began(crawler_container(pod)):
            return LogPart(b"", 0, True) if over else None
        try:
            return self._part(pod, after, limit, over)
        # Its node has no log (any more), or the pod has disappeared in the meantime.
        except (NotFound, RequestRefused) as error:
            if error.status == 403:  # we are not permitted to read the log, which may still exist
                raise
            return LogPart(b"", 0, True) if over else None

    def _pod(self, run: RunRef, task: TaskRef) -> Pod | None:
        key = (run.run_id, task.index, task.attempt)
        pods = list_pods(self._api, of_tasks(run.run_id, [task], settled=None))
        return deciding_pod(
            p
            for p in pods
            if key_of(p.metadata) == key and is_of(run, task, owner_of(p), p.metadata)
        )

    def _part(self, pod: Pod, after: int | None, limit: int, over: bool) -> LogPart:
        if after is None:
            piece = self._piece(pod, _Line(), ASK_MAX)
            position = max(0, len(piece.data) - limit)
            return self._answer(pod, _Line(), piece, position, limit, over)
        begin = self._remembered(pod, after)
        piece = self._piece(pod, begin, after - begin.position + limit)
        if begin.stamp and (not piece.lines or piece.lines[0] != begin):
            begin = _Line()  # the log was rotated, or lost together with its node
            piece = self._piece(pod, begin, after + limit)
        if after > begin.position + len(piece.data):
            begin = _Line()
            after = 0
            piece = self._piece(pod, begin, limit)
        return self._answer(pod, begin, piece, after, limit, over)

    def _answer(
        self, pod: Pod, begin: _Line, piece: _Piece, position: int, limit: int, over: bool
    ) -> LogPart:
        data = piece.data[position - begin.position : position - begin.position + limit]
        end = position + len(data)
        last = next((line for line in reversed(piece.lines) if line.position <= end), None)
        if last is not None:
            self._remember(pod, last)
        return LogPart(data, end, over and piece.whole and end == begin.position + len(piece.data))

    def _piece(self, pod: Pod, begin: _Line, wanted: int) -> _Piece:
        """Return at least ``wanted`` bytes from the line ``begin`` on, if the log has that many.

        The API also counts the bytes of time stamps. Their total size is not known beforehand, so
        this may take several requests.
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
                raise NotFound("the node has no log of the container (any more)")
            piece = _without_stamps(raw, begin.position, whole=len(raw) < ask)
            if piece.whole or len(piece.data) >= wanted or ask >= ASK_MAX:
                return piece
            ask = min(ask * 4, ASK_MAX)

    def _remembered(self, pod: Pod, after: int) -> _Line:
        with self._lock:
            line = self._lines.get(pod.metadata.uid)
        return line if line is not None and line.position <= after else _Line()

    def _remember(self, pod: Pod, line: _Line) -> None:
        with self._lock:
            self._lines[pod.metadata.uid] = line
            self._lines.move_to_end(pod.metadata.uid)
            while len(self._lines) > REMEMBERED:
                self._lines.popitem(last=False)


def _without_stamps(raw: bytes, position: int, *, whole: bool) -> _Piece:
    """Return the lines without their leading time stamp and space.

    The last line may be cut, even within its time stamp.
    """
    parts = []
    lines = []
    second = b""
    for line in io.BytesIO(raw):  # ``BytesIO`` splits at line feeds only, unlike ``splitlines``
        stamp, space, text = line.partition(b" ")
        if not space:
            break  # the response ends inside the time
        if stamp[:19] != second:
            second = stamp[:19]
            lines.append(_Line(position, stamp))
        parts.append(text)
        position += len(text)
    return _Piece(b"".join(parts), whole, lines)

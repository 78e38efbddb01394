"""Deadlines: a time limit for a whole call, and a way for another thread to end a stream.

The read timeout of a socket restarts with each byte. So a server that sends one byte every few
seconds could block a caller forever. Therefore each connection reports the socket of its call, and
one thread closes the sockets of overdue calls.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .errors import TooLate

_using = threading.local()


class Call:
    """One request and its response, from the connect to the last byte."""

    def __init__(self, until: float, left_s: Callable[[], float] | None = None) -> None:
        self.until = until
        """The time from which the call is overdue (monotonic)."""
        self._left_s = left_s
        self.overdue = False
        self.sent = False
        """True when part of the request may have reached the server."""
        self.over = False
        self._socket: socket.socket | None = None
        self._cut = False
        self._lock = threading.Lock()

    def timed(self, url: str) -> str:
        """Return the URL with the number of seconds in which the server must carry out the request.

        Raises ``TooLate``.
        """
        if self._left_s is None:
            return url
        left_s = math.floor(self._left_s() * 1000) / 1000
        if left_s <= 0:
            raise TooLate("the request's time limit expired before the request was sent")
        return f"{url}{'&' if '?' in url else '?'}timeout={left_s:.3f}s"

    def uses(self, sock: socket.socket | None) -> None:
        with self._lock:
            self.sent = True
            self._socket = sock
            cut = self.over
        if cut:
            self.cut()

    def cut(self) -> None:
        """End the call, from any thread. The thread that reads the response sees the end of the
        connection at once.
        """
        with self._lock:
            self.over = True
            if self._socket is not None:
                self._cut = True
                with contextlib.suppress(OSError):  # the socket is closed already
                    # Call the plain socket's method: a TLS socket's own method deletes state that
                    # the reading thread uses.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def done(self) -> bool:
        """Release the socket for other calls.

        Return whether ``cut`` had closed it.
        """
        with self._lock:
            self._socket = None
            return self._cut


def tracked(base: type[Any]) -> type[Any]:
    """Return a subclass of urllib3's connection that reports its socket to the calling thread's
    ``Call``.
    """

    class Tracked(base):  # type: ignore[misc]
        _last: Call | None = None

        def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
            call: Call | None = getattr(_using, "call", None)
            if call is None:
                super().request(method, url, *args, **kwargs)
                return
            # A connection is free after the last byte of a response, a moment before its call ends.
            # In between, the call may still be cut, which also closes the socket.
            if self._last is not None and self._last.done():
                self.close()
            self._last = call
            # Connect now: http.client would connect only after the remaining time is computed.
            if self.sock is None:
                self.connect()
            url = call.timed(url)  # the server counts from receipt, so nothing slow may follow
            call.uses(self.sock)
            super().request(method, url, *args, **kwargs)

    Tracked.__name__ = base.__name__
    return Tracked


class Calls:
    """The open calls of one client, and the thread that ends overdue calls.

    The thread ends ``_IDLE_S`` after the last call, because calls come in bursts.
    """

    def __init__(self) -> None:
        self._open: set[Call] = set()
        self._changed = threading.Condition()
        self._watching = self._closed = False
        self._wakes_at = 0.0

    def begin(self, seconds: float, left_s: Callable[[], float] | None = None) -> Call:
        """Begin a call by this thread that may take ``seconds`` in total.

        ``left_s`` returns the seconds in which the server must carry out the call.
        """
        call = Call(time.monotonic() + seconds, left_s)
        with self._changed:
            if not self._watching:
                # This may raise an error when there are too many threads. Then the next call tries
                # again.
                threading.Thread(target=self._watch, name="kubernetes-calls", daemon=True).start()
                self._watching = True
            self._open.add(call)
            if call.until < self._wakes_at:
                self._changed.notify()
        _using.call = call
        return call

    def sent(self) -> None:
        """Record that the request was sent: sockets that this thread uses later do not belong to
        the call.
        """
        _using.call = None

    def end(self, call: Call) -> None:
        _using.call = None
        call.done()
        with self._changed:
            self._open.discard(call)

    def close(self) -> None:
        """End all calls, and the thread."""
        with self._changed:
            self._closed = True
            for call in self._open:
                call.cut()
            self._open.clear()
            self._changed.notify()

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while True:
            with self._changed:
                now = time.monotonic()
                for call in [c for c in self._open if c.until <= now]:
                    call.overdue = True
                    call.cut()
                    self._open.discard(call)
                if self._open:
                    idle_since = now
                elif self._closed or now >= idle_since + _IDLE_S:
                    self._watching = False
                    return
                self._wakes_at = min([c.until for c in self._open] + [now + _IDLE_S])
                self._changed.wait(self._wakes_at - now)


#: Seconds without a call after which the thread ends.
_IDLE_S = 5.0

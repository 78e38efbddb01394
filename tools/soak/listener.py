"""A front end that listens all the time, and comes back each time it is cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import httpx

#: A comment comes every 15 s; a stream that is silent for longer is dead.
SILENCE_S = 40.0


class Listener:
    """Reads the gateway's event stream from its first event on.

    ``numbers`` are those of the events, as they came.
    """

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self.numbers: list[int] = []
        self.connections = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _listen(self) -> None:
        while not self._over.is_set():
            last = self.numbers[-1] if self.numbers else 0
            timeout, place = httpx.Timeout(10, read=SILENCE_S), {"Last-Event-ID": str(last)}
            url = f"{self._address()}/v1/events"
            with (
                suppress(httpx.HTTPError),  # cut, or nobody is there: it comes back
                httpx.stream("GET", url, headers=place, timeout=timeout, trust_env=False) as answer,
            ):
                if answer.is_success:
                    self.connections += 1
                    self._read(answer)
            self._over.wait(0.5)

    def _read(self, answer: httpx.Response) -> None:
        """Until the stream is cut. What was cut in the middle of an event comes again."""
        kind, number = "", 0
        for line in answer.iter_lines():
            if self._over.is_set():
                return
            if line.startswith("event:"):
                kind = line.removeprefix("event:").strip()
            elif line.startswith("id:"):
                number = int(line.removeprefix("id:"))
            elif not line:
                if kind and kind != "hello":
                    self.numbers.append(number)
                kind = ""

    def caught_up(self, last: int, seconds: float) -> bool:
        """Whether the event with this number has come, by then."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.numbers and self.numbers[-1] >= last:
                return True
            time.sleep(0.2)
        return False

"""A client that always listens to the event stream, and connects again each time the stream is cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import httpx

#: A comment comes every 15 s, so a stream that is silent for longer is dead.
SILENCE_S = 40.0


class Listener:
    """Reads the event stream of the gateway from its first event on.

    ``numbers`` contains the numbers of the events, in the order in which they came.
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
                suppress(
                    httpx.HTTPError
                ),  # The stream was cut, or nobody answers. It connects again.
                httpx.stream("GET", url, headers=place, timeout=timeout, trust_env=False) as answer,
            ):
                if answer.is_success:
                    self.connections += 1
                    self._read(answer)
            self._over.wait(0.5)

    def _read(self, answer: httpx.Response) -> None:
        """Read until the stream is cut. An event that was cut in the middle is sent again."""
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
        """Return whether the event with this number has arrived by then."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.numbers and self.numbers[-1] >= last:
                return True
            time.sleep(0.2)
        return False

"""Calls for many things, some of them at once: a call that hangs holds up no other one."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Calls that are under way at once.
WIDTH = 16
#: Seconds after which a call is slow: another call may begin in its place, and at the end this one is not waited for.
SLOW_S = 5.0
#: Calls under way at once, the slow ones among them.
MOST = 200


class Abreast(Generic[T, R]):
    """Calls ``do`` for each item; At the end, ``slow`` holds the calls that were not waited for.

    They go on in threads of their own until they end by their own time limits; what comes of them is not reported.
    """

    def __init__(self, do: Callable[[T], R], *, width: int = WIDTH, slow_s: float = SLOW_S, most: int = MOST) -> None:
        self._do = do
        self._width, self._slow_s, self._most = width, slow_s, most
        self._busy: dict[int, float] = {}
        self._answers: SimpleQueue[tuple[int, T, R | BaseException]] = SimpleQueue()

    @property
    def slow(self) -> int:
        return len(self._busy)

    def over(self, items: Iterable[T]) -> Iterator[tuple[T, R | Exception]]:
        """Results of the items, in the order in which the calls end. An item is taken when its call can begin."""
        waiting, number, more = iter(items), 0, True
        while True:
            prompt = self._prompt()
            while more and len(prompt) < self._width and len(self._busy) < self._most:
                try:
                    item = next(waiting)
                except StopIteration:
                    more = False
                    break
                number += 1
                self._begin(number, item)
                prompt.append(self._busy[number])
            if not prompt and (not more or len(self._busy) >= self._most):
                return
            yield from self._ended(min(prompt) + self._slow_s - time.monotonic() if prompt else 0.0)

    def _prompt(self) -> list[float]:
        """The start times of the calls that are under way and not slow."""
        since = time.monotonic() - self._slow_s
        return [began for began in self._busy.values() if began > since]

    def _begin(self, number: int, item: T) -> None:
        def call() -> None:
            try:
                answer: R | BaseException = self._do(item)
            except BaseException as error:  # whatever it is, it is returned like an answer
                answer = error
            self._answers.put((number, item, answer))

        self._busy[number] = time.monotonic()
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(call,), name=f"abreast-{number}", daemon=True).start()

    def _ended(self, seconds: float) -> Iterator[tuple[T, R | Exception]]:
        """Wait for one call, at most ``seconds``, and give it and all others that have ended."""
        try:
            found = self._answers.get(timeout=max(seconds, 0.001))
            while True:
                number, item, answer = found
                del self._busy[number]
                if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                    raise answer
                yield item, answer
                found = self._answers.get_nowait()
        except Empty:
            return

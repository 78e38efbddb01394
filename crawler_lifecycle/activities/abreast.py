"""Concurrent calls of one function for many items.

A call that hangs does not delay the others.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Maximum number of concurrent calls, excluding slow calls.
WIDTH = 16
#: Seconds after which a call counts as slow. Another call can then start in its place, and the end
#: does not wait for the slow call.
SLOW_S = 5.0
#: Maximum number of concurrent calls, including slow calls.
MOST = 200


class Abreast(Generic[T, R]):
    """Calls ``do`` for each item. At the end, ``slow`` is the number of slow calls that have not
    returned. These calls continue in their own threads until their own time limits end them, and
    their results are discarded.
    """

    def __init__(
        self, do: Callable[[T], R], *, width: int = WIDTH, slow_s: float = SLOW_S, most: int = MOST
    ) -> None:
        self._do = do
        self._width = width
        self._slow_s = slow_s
        self._most = most
        self._busy: dict[int, float] = {}
        self._answers: SimpleQueue[tuple[int, T, R | BaseException]] = SimpleQueue()

    @property
    def slow(self) -> int:
        return len(self._busy)

    def over(self, items: Iterable[T]) -> Iterator[tuple[T, R | Exception]]:
        """Yield each item with its result or error, in the order in which the calls return. An item
        is read only when its call can start.
        """
        waiting = iter(items)
        number = 0
        more = True
        while True:
            since = time.monotonic() - self._slow_s
            prompt = [began for began in self._busy.values() if began > since]
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

    def _begin(self, number: int, item: T) -> None:
        def call() -> None:
            try:
                answer: R | BaseException = self._do(item)
            except BaseException as error:  # any error becomes the result of this call
                answer = error
            self._answers.put((number, item, answer))

        self._busy[number] = time.monotonic()
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(call,), name=f"abreast-{number}", daemon=True).start()

    def _ended(self, seconds: float) -> Iterator[tuple[T, R | Exception]]:
        """Wait up to ``seconds`` for one call, and yield the results of all calls that have
        returned by then.
        """
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

"""Asks the gateway whether a stop is forced, because the runner has no other source.

A kubelet that has begun to end a pod waits for the whole first grace: a shorter one changes nothing. So a runner that
is being stopped asks whether its stop has become a forced one; seldom, and only when the stop takes long.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
import urllib.error
import urllib.request

from .upload import ANSWER_MAX, NoRedirect, passing

#: Seconds before each question; the last figure applies to all further ones. Most crawlers have ended before the first.
_PAUSES_S = (5.0, 5.0, 10.0, 15.0, 30.0)
_CHANCE = random.SystemRandom()
#: For one connection, and for each piece of an answer.
_SILENCE_S = 10.0


class ForcedStop:
    """Asks from now on, in another thread, until the answer is yes or no answer will ever come."""

    def __init__(self, url: str, token: str) -> None:
        self.at: float | None = None
        """The time when we learned that the stop is forced, by the monotonic clock."""
        self._url = url
        self._token = token
        self._opener = urllib.request.build_opener(NoRedirect)
        with contextlib.suppress(RuntimeError):  # no thread is available: then the grace stays
            threading.Thread(target=self._ask, name="crawl-forced-stop", daemon=True).start()

    def _ask(self) -> None:
        for pause in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            time.sleep(pause * _CHANCE.uniform(0.8, 1.2))  # many tasks are stopped at the same time
            answer = self._answer()
            if answer is not None:
                if answer:
                    self.at = time.monotonic()
                return

    def _answer(self) -> bool | None:
        """Return whether it is forced; false also when further questions are useless. ``None``: ask again."""
        try:
            headers = {"Authorization": f"Bearer {self._token}"}
            request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - checked by who made us
            with self._opener.open(request, timeout=_SILENCE_S) as answer:
                return True if json.loads(answer.read(ANSWER_MAX))["force"] is True else None
        except urllib.error.HTTPError as error:
            with error:
                return None if passing(error.code) else False
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
            return None

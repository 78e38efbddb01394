"""Requests that ask the gateway whether a stop has become a forced stop.

After a kubelet has begun to end a pod, a shorter grace period has no effect. So the runner itself
asks the gateway, but rarely, and only when a stop takes a long time.
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

#: Seconds before each request; the last number applies to all further ones. Most crawlers end
#: before the first of these requests.
_PAUSES_S = (5.0, 5.0, 10.0, 15.0, 30.0)
_CHANCE = random.SystemRandom()
#: Timeout in seconds for a connection, and for each read of a response.
_SILENCE_S = 10.0


class ForcedStop:
    """A thread that asks the gateway until the stop is forced, or until a refusal shows that
    further requests are useless.
    """

    def __init__(self, url: str, token: str) -> None:
        self.at: float | None = None
        """The time when the gateway reported that the stop is forced, by the monotonic clock."""
        self._url = url
        self._token = token
        self._opener = urllib.request.build_opener(NoRedirect)
        # The system allows no further thread, so the crawler gets its full grace period.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._ask, name="crawl-forced-stop", daemon=True).start()

    def _ask(self) -> None:
        for pause in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            # Many tasks may be stopped at the same time, so the requests are spread.
            time.sleep(pause * _CHANCE.uniform(0.8, 1.2))
            answer = self._answer()
            if answer is not None:
                if answer:
                    self.at = time.monotonic()
                return

    def _answer(self) -> bool | None:
        """Return true for a forced stop, false when the gateway refuses permanently, and ``None``
        to ask again.
        """
        try:
            headers = {"Authorization": f"Bearer {self._token}"}
            request = urllib.request.Request(self._url, headers=headers)  # noqa: S310
            with self._opener.open(request, timeout=_SILENCE_S) as answer:
                return True if json.loads(answer.read(ANSWER_MAX))["force"] is True else None
        except urllib.error.HTTPError as error:
            with error:
                return None if passing(error.code) else False
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ):
            return None

"""A receiver of webhooks: verifies each delivery with the public library, records it, and can fail
on request.
"""

from __future__ import annotations

import base64
import random
import threading

from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.faulty_http import Answer, FaultyServer

#: The secret with which the tests sign, and the variable that contains it.
SECRET, OTHER = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (7, 9))
ENVIRONMENT = {"CRAWL_HOOK": SECRET, "CRAWL_HOOK_NEXT": OTHER}


class Receiver(FaultyServer):
    """Records the documents that it accepted, in order, verified with ``secret``."""

    def __init__(self, secret: str = SECRET) -> None:
        super().__init__()
        self.secret = secret
        self.taken: list[dict[str, object]] = []
        self.ids: list[str] = []
        self.answer = Answer(204, b"")
        self.chance: tuple[random.Random, float] | None = None
        """Fails by chance: with which probability."""
        self._lock = threading.Lock()

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        try:
            document = Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError as error:
            return Answer(400, str(error).encode())
        with self._lock:
            if self.chance is not None and self.chance[0].random() < self.chance[1]:
                return Answer(500, b"not today")
            if 200 <= self.answer.status < 300:
                self.taken.append(document)
                self.ids.append(headers["webhook-id"])
        return self.answer

    def seqs(self, subject: str | None = None) -> list[int]:
        """Return the numbers of the events that it accepted."""
        return [
            int(str(one["sequence"])) for one in self.taken if subject in (None, one["subject"])
        ]

"""Upload of the crawler's supporting files to object storage after the crawler has ended.

For each part, the runner asks the gateway for an address and puts the part there. The runner's
token is valid only for the files of this task. Failed calls are retried until the time limit is
reached; then the failure is reported. The upload never changes the result of the crawl.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from .bundle import Bundle
from .inject.crawl_runner_retry_after import seconds_to_wait

#: The reason in the summary during the upload. It remains there if the runner is killed.
INTERRUPTED = "the runner was killed while it uploaded them"
OUT_OF_TIME = "there was no time left"
#: Timeout in seconds for a connection, and for each read of a response.
_SILENCE_S = 20.0
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
#: The longest wait that a response can demand.
_WAIT_MAX_S = 10.0
#: The number of refusals by object storage after which we give up. An expired address or a wrong
#: clock can cause one or two.
_REFUSALS_MAX = 3
_WORDS_MAX = 300
ANSWER_MAX = 64 * 1024


class _Later(Exception):
    """A failed call that may succeed later."""

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class _Never(Exception):
    """A failure that no retry can repair."""


class Upload:
    """One upload, which runs in another thread, so that no call can delay the runner's end."""

    def __init__(self, folder: str, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._bundle = Bundle(folder)
        self._over = threading.Event()
        self._deadline = time.monotonic()
        self._incident = ""
        self._result: dict[str, Any] | None = None
        self._opener = urllib.request.build_opener(NoRedirect)

    def start(self, deadline: float) -> None:
        """Start the upload, which ends at the latest at ``deadline``, a time of the monotonic
        clock.
        """
        self._deadline = deadline
        threading.Thread(target=self._run, name="crawl-upload", daemon=True).start()

    def over(self) -> bool:
        return self._over.is_set()

    def hurry(self, deadline: float) -> None:
        """Move the deadline to this time if this time is earlier."""
        self._deadline = min(self._deadline, deadline)

    def late(self) -> bool:
        return time.monotonic() >= self._deadline

    def result(self) -> dict[str, Any]:
        """Return the entry ``files`` of the summary. This may be called during the upload."""
        if self._over.is_set() and self._result is not None:
            return self._result
        return {
            "uploaded": False,
            "why": _cut(OUT_OF_TIME + (f": {self._incident}" if self._incident else "")),
        }

    # --- in the thread

    def _run(self) -> None:
        try:
            end = self._bundle.send(self._put)
            self._put(None, json.dumps(end).encode())
            result: dict[str, Any] = {
                "uploaded": True,
                "files": self._bundle.files,
                "bytes": self._bundle.bytes,
            }
            if self._bundle.left_out:
                result["left_out"] = self._bundle.left_out
        except _Never as error:
            result = {"uploaded": False, "why": _cut(str(error))}
        except Exception as error:
            result = {"uploaded": False, "why": _cut(f"{type(error).__name__}: {error}")}
        self._result = result
        self._over.set()

    def _put(self, number: int | None, data: bytes) -> None:
        """Send one part, with retries. Retries are safe, because a part that is sent again creates
        the same object.

        Raises ``_Never``.
        """
        refusals = tries = 0
        while True:
            try:
                address, headers = self._ticket(number, data)
                status, answer, wait_s = self._call("PUT", address, data, headers)
                if status in (200, 201, 204):
                    return
                why = f"object storage returned {status}{_s3_words(answer)}"
                refusals += not passing(status)
                if refusals >= _REFUSALS_MAX:
                    raise _Never(why)
                raise _Later(why, wait_s)
            except _Later as error:
                self._incident = _cut(str(error))
                pause = max(error.wait_s, _PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
                tries += 1
                if time.monotonic() + pause >= self._deadline:
                    raise _Never(f"{OUT_OF_TIME}: {error}") from None
                time.sleep(pause)

    def _ticket(self, number: int | None, data: bytes) -> tuple[str, dict[str, str]]:
        """Ask the gateway for the upload address and headers for these bytes.

        Raises ``_Later`` and ``_Never``.
        """
        digest = hashlib.md5(data, usedforsecurity=False).digest()  # the digest that S3 checks
        md5 = base64.b64encode(digest).decode()
        body = json.dumps({"part": number, "bytes": len(data), "md5": md5}).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        status, answer, wait_s = self._call("POST", self._url, body, headers)
        if status != 200:
            why = f"the gateway returned {status}{problem_words(answer)}"
            raise _Later(why, wait_s) if passing(status) else _Never(why)
        try:
            ticket = json.loads(answer)
            given = {str(name): str(value) for name, value in ticket["headers"].items()}
            return str(ticket["url"]), {"Content-Type": "application/octet-stream", **given}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _Later("the gateway's response cannot be read") from None

    def _call(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, float]:
        """Return the status, the first bytes of the response and the seconds to wait before the
        next call.

        Raises ``_Later`` and ``_Never``.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise _Later(self._incident or "it took too long")
        who = "the gateway" if method == "POST" else "object storage"
        if not url.startswith(("http://", "https://")):
            raise _Never(
                f"the address of {who} cannot be used: {url[:60]!r} is not an HTTP address"
            )
        try:
            request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)  # noqa: S310
            with self._opener.open(request, timeout=min(_SILENCE_S, left)) as answer:
                return answer.status, answer.read(ANSWER_MAX), 0.0
        except urllib.error.HTTPError as error:
            with error:
                wait_s = seconds_to_wait(error.headers.get("Retry-After")) or 0.0
                return error.code, rest(error), min(wait_s, _WAIT_MAX_S)
        except ValueError as error:
            raise _Never(f"the address of {who} cannot be used: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise _Later(f"{who} cannot be reached: {reason}") from None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: a signed address is valid only for its own host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def passing(status: int) -> bool:
    """Return whether the same request may succeed when it is sent again."""
    return status >= 500 or status in (408, 425, 429)


def rest(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(ANSWER_MAX)
    except (OSError, http.client.HTTPException):
        return b""


def problem_words(answer: bytes) -> str:
    try:
        return f": {json.loads(answer)['detail']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _s3_words(answer: bytes) -> str:
    found = re.search(rb"<Code>([A-Za-z0-9.]{1,60})</Code>", answer)
    return f" {found.group(1).decode()}" if found else ""


def _cut(text: str) -> str:
    # ASCII, because JSON needs more bytes for other characters and the summary is small.
    return " ".join(text.split())[:_WORDS_MAX].encode("ascii", "replace").decode()

"""The notifier for Pusher Channels, or for a server with the same HTTP API.

The official client creates and signs the requests. Our own transport sends them, because it limits
the total time of a push. The client's package is an extra, and is imported when a notifier is
created.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import httpx

from crawler_lifecycle.cloudevents import event_text
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.ports.runs import Event

#: The maximum size of an event's data, in bytes. Pusher accepts less than 10 kB (pusher.com, "HTTP
#: API Reference").
DATA_MAX = 9_999
#: The maximum number of channels for an event (same reference), and of characters in a channel's
#: name.
CHANNELS_MAX = 100
CHANNEL_MAX = 200
#: The maximum number of parallel calls, including abandoned calls whose server does not respond.
CALLS_MAX = 32
#: The maximum number of bytes of a response that are read, and of characters that an error quotes.
ANSWER_MAX = 64 * 1024
TEXT_MAX = 300

SETTING = "LIFECYCLE_PUSHER__"

_APP_ID = re.compile(r"[0-9]+")
_HOST = re.compile(r"[-.A-Za-z0-9]+|\[[:.0-9A-Fa-f]+\]")
_CHANNEL = re.compile(r"[-a-zA-Z0-9_=@,.;]+")
_NOT_IN_A_CHANNEL = re.compile(r"[^-a-zA-Z0-9_=@,.;]")

#: The fix for each response status.
FIXES = {
    400: f"check {SETTING}CHANNEL",
    401: f"check {SETTING}KEY, {SETTING}SECRET and the clock of this machine",
    403: "the app is disabled or over its quota of messages",
    404: f"check {SETTING}APP_ID and {SETTING}CLUSTER or {SETTING}HOST",
    413: "the server accepts less than 10 kB, or the quota is used up",
    429: "too many messages; raise the plan's limit if this continues",
}


class PusherNotifier:
    """The port ``Notifier``.

    This notifier sends each event under its type, with the document of docs/events.md as data.

    ``channel`` lists the channels, separated by spaces. ``{run_id}`` and ``{crawler}`` are
    replaced. A channel is left out if the event has no value for one of its placeholders. A try
    takes at most ``timeout_s`` seconds, from the name lookup to the last byte. Proxies and
    certificates come from the environment (``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``).

    Raises ``InvalidRequest`` with the name of the wrong setting.
    """

    name = "pusher"
    sends = True

    def __init__(
        self,
        *,
        app_id: str,
        key: str,
        secret: str,
        channel: str,
        cluster: str | None = None,
        host: str | None = None,
        port: int | None = None,
        tls: bool = True,
        timeout_s: float = 1.4,
    ) -> None:
        if not _APP_ID.fullmatch(app_id):
            raise InvalidRequest(
                f"{SETTING}APP_ID: {app_id!r} is not allowed; Pusher's app ids are digits"
            )
        for name, value in (("KEY", key), ("SECRET", secret)):
            if not value.strip():
                raise InvalidRequest(
                    f"{SETTING}{name}: missing; copy the value from the app's page"
                )
        for name, address in (("HOST", host), ("CLUSTER", cluster)):
            if address is not None and not _HOST.fullmatch(address):
                raise InvalidRequest(
                    f"{SETTING}{name}: {address!r} is not allowed; give a name, without scheme "
                    "and port"
                )
        self._channels = _channel_names(channel)
        self._timeout_s = timeout_s
        self._secret = secret
        self._calls = threading.Semaphore(CALLS_MAX)
        self._http = _transport(timeout_s)
        self._pusher = _official_client(
            app_id=app_id,
            key=key,
            secret=secret,
            cluster=cluster,
            host=host,
            port=port,
            ssl=tls,
            timeout=timeout_s,
            backend=lambda client, **_: self,
        )
        inner = self._pusher._pusher_client
        self._where = f"Pusher app {app_id} at {inner.scheme}://{inner.host}:{inner.port}"

    def __repr__(self) -> str:
        return f"<PusherNotifier {self._where}>"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def push(self, event: Event) -> None:
        """Trigger the event on its channels. Raises ``NotDelivered`` within ``timeout_s``."""
        try:
            # This is ASCII, because the client measures the memory of the text instead of its
            # bytes. A single wide character would make it refuse a text that Pusher accepts.
            data = event_text(event, DATA_MAX)
        except (TypeError, ValueError) as error:
            raise NotDelivered(f"{self._where}: the event cannot be written: {error}") from error
        channels = self.channels(event)
        if not channels:
            raise NotDelivered(
                f"{self._where}: no channel of {SETTING}CHANNEL can be used for {event.type} of "
                f"{event.subject}; add a channel without placeholders"
            )
        self._within_time(lambda: self._pusher.trigger(channels, event.type, data))

    def check(self) -> str:
        """Check the key and the secret with a request, and return a description of the destination
        of pushes.

        Raises ``NotDelivered``.
        """
        channel = _filled(self._channels[0])
        self._within_time(lambda: self._pusher.channel_info(channel))
        return f"{self._where}, channels {', '.join(self._channels)}"

    def channels(self, event: Event) -> list[str]:
        """Return the channels of an event.

        A channel name with a run or a crawler is used only for events that have one.
        """
        given = {"run_id": event.run_id, "crawler": event.body.get("crawler")}
        known = {name: str(value) for name, value in given.items() if value is not None}
        names = [
            _filled(name, **known)
            for name in self._channels
            if not any(f"{{{key}}}" in name for key in given.keys() - known.keys())
        ]
        return list(dict.fromkeys(names))

    def _within_time(self, call: Callable[[], object]) -> None:
        """Execute the call in another thread, and abandon it after the time limit.

        No socket timeout covers a silent name server or a server that sends byte by byte. Both
        would block one of the worker's few threads.
        """
        deadline = time.monotonic() + self._timeout_s
        if not self._calls.acquire(timeout=self._timeout_s):
            raise NotDelivered(
                f"{self._where}: {CALLS_MAX} earlier calls are still waiting for a response"
            )
        done = Future[None]()

        def run() -> None:
            try:
                call()
            except Exception as error:  # the caller raises the error
                done.set_exception(error)
            else:
                done.set_result(None)
            finally:
                self._calls.release()

        threading.Thread(target=run, name="push", daemon=True).start()
        if not wait((done,), max(0.0, deadline - time.monotonic())).done:
            raise NotDelivered(f"{self._where}: no response within {self._timeout_s} s")
        failure = done.exception()
        if failure is not None:
            # `from None`: errors of libraries may contain the signed URL, and causes are stored
            # with the failure.
            known = isinstance(failure, NotDelivered)
            raise (
                failure if known else NotDelivered(f"{self._where}: {self._plain(failure)}")
            ) from None

    def send_request(self, request: Any) -> None:
        """Send a signed request. The official client calls this method as its transport."""
        deadline = time.monotonic() + self._timeout_s
        content = bytearray()
        try:
            with self._http.stream(
                request.method, request.url, headers=request.headers, content=request.body
            ) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > ANSWER_MAX or time.monotonic() > deadline:
                        break
        except httpx.TimeoutException:
            raise NotDelivered(f"{self._where}: no response within {self._timeout_s} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotDelivered(f"{self._where} cannot be reached: {self._plain(error)}") from None
        self._check_answer(response, bytes(content))

    def _check_answer(self, response: httpx.Response, content: bytes) -> None:
        status = response.status_code
        text = self._plain(content.decode(errors="replace"))
        if status not in (200, 202):
            fix = FIXES.get(status)
            raise NotDelivered(
                f"{self._where} returned {status}: {text}" + (f"; {fix}" if fix else "")
            )
        # A login portal or a proxy may also return 200, with an HTML page.
        if not content.strip().startswith(b"{"):
            raise NotDelivered(
                f"{self._where} returned {status} with something other than JSON; check "
                f"{SETTING}HOST"
            )

    def _plain(self, text: object) -> str:
        """Return one short line without the secret and signatures, regardless of the library that
        wrote the error.
        """
        line = str(text).strip() or (
            type(text).__name__ if isinstance(text, Exception) else "no reason given"
        )
        line = line.replace(self._secret, "…")
        line = re.sub(r"(auth_signature|auth_key|body_md5)=[^&\s\"\\]*", r"\1=…", line)
        line = re.sub(r"\b[0-9a-f]{64}\b", "…", line)
        return printable(line)[:TEXT_MAX].strip()


def _transport(timeout_s: float) -> httpx.Client:
    limits = httpx.Limits(max_connections=CALLS_MAX, max_keepalive_connections=CALLS_MAX)
    try:
        return httpx.Client(timeout=timeout_s, limits=limits, follow_redirects=False)
    except (ValueError, OSError, ImportError, httpx.InvalidURL) as error:
        raise InvalidRequest(
            f"{SETTING}APP_ID: pushes cannot be made with the proxies or certificates from the "
            f"environment: {error}; "
            "check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from None


def _official_client(**options: Any) -> Any:
    try:
        import pusher
    except ImportError:
        raise InvalidRequest(
            f"{SETTING}APP_ID: {options['app_id']!r} enables pushes, but the package for them is "
            "not installed; "
            "pip install 'crawler-lifecycle[pusher]', or unset it"
        ) from None
    try:
        return pusher.Pusher(**options)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{SETTING}…: the client refuses these settings: {error}") from None


def _channel_names(setting: str) -> list[str]:
    """Return the names from the setting. Raises ``InvalidRequest``."""
    names = list(dict.fromkeys(setting.split()))
    if not names or len(names) > CHANNELS_MAX:
        raise InvalidRequest(
            f"{SETTING}CHANNEL: {setting[:TEXT_MAX]!r} is not allowed; "
            f"give 1 to {CHANNELS_MAX} channel names, separated by spaces"
        )
    for name in names:
        if name.startswith("private-encrypted-"):
            raise InvalidRequest(
                f"{SETTING}CHANNEL: {name!r} is not allowed; encrypted channels are not served, "
                "use private-…"
            )
        longest = _filled(name, "9" * 19, "c" * 63)
        if not _CHANNEL.fullmatch(longest) or len(longest) > CHANNEL_MAX:
            raise InvalidRequest(
                f"{SETTING}CHANNEL: {name!r} is not allowed; use letters, digits, _ - = @ , . ; "
                "and the placeholders "
                f"{{run_id}} and {{crawler}}, at most {CHANNEL_MAX} characters"
            )
    return names


def _filled(name: str, run_id: str = "0", crawler: str = "check") -> str:
    return name.replace("{run_id}", run_id).replace(
        "{crawler}", _NOT_IN_A_CHANNEL.sub("_", crawler)[:63]
    )

"""Delivers events to webhooks, signed as Standard Webhooks requires, or as alerts. Their addresses
are checked each time.

Only this module resolves the host name, and it connects to the address that it has checked. Proxies
are not used, because they would resolve the name again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import platform
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

import httpx

from crawler_lifecycle import redaction
from crawler_lifecycle.cloudevents import ENTRY_MAX, event_id, event_text
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.domain.variables import REFERENCE
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.runner.inject.crawl_runner_retry_after import seconds_to_wait

from .domain.addresses import WebhookRules
from .domain.alerts import Alert, alert_of, message
from .domain.definition import EMAIL, WEBHOOK, WebhookSpec
from .domain.signing import message_id, read_secret, signed_headers
from .ports import Mailer, ReceiverGone, WebhookSender

#: Seconds for one delivery, from the name lookup to the response.
TIMEOUT_S = 10.0
#: Seconds for reading the response's body.
WORDS_S = 1.0
#: The number of bytes of the body that are read.
ANSWER_MAX = 1024
#: The share of the delivery's time for connecting to one address while there are further addresses.
CONNECT_SHARE = 0.3
#: The maximum number of parallel deliveries to one webhook.
AT_ONCE = 8

#: Returns the addresses for a host and a port.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the name server. Raises ``OSError``."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(eq=False)
class HttpWebhooks:
    """Implements the port ``WebhookSenders`` over HTTP.

    ``rules`` limit the allowed addresses, and ``environment`` has the variables with secrets.
    ``mailer`` sends alerts of kind ``email``. ``page`` is the address of the web UI, for links.
    """

    rules: WebhookRules = field(default_factory=WebhookRules)
    mailer: Mailer | None = None
    page: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    resolve: Resolve = resolve_name
    clock: Callable[[], float] = time.time

    @functools.cached_property
    def _trusted(self) -> ssl.SSLContext:
        """Return the context that checks certificates.

        It is created only once, because that takes 20 to 77 ms of processor time.
        """
        return httpx.create_ssl_context()

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[WebhookSender]:
        """Yield a sender with its own connections."""
        limits = httpx.Limits(
            max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE, keepalive_expiry=2.0
        )
        options = {"verify": self._trusted, "trust_env": False, "follow_redirects": False}
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, **options) as client:  # type: ignore[arg-type]
            yield _Sender(self, client)

    def alert(self, event: Event) -> Alert:
        """Return the event as a message for people."""
        return alert_of(event.type, event.subject, event.body, self.page)

    def resolved(self, spec: WebhookSpec) -> tuple[WebhookSpec, Sequence[bytes]]:
        """Return the definition with its address resolved from the environment, and its keys.

        Raises ``NotDelivered`` if that address may not be called, or if this worker cannot read a
        variable.
        """
        try:
            self.rules.check(spec)  # check before any environment variable is read
            if spec.url.startswith(REFERENCE):
                spec = replace(spec, url=self.environment.get(spec.url.removeprefix(REFERENCE), ""))
                if spec.url.startswith(REFERENCE):
                    raise InvalidRequest(
                        "url: the variable refers to another variable; set it to the address"
                    )
                self.rules.check(spec)
            return spec, [
                read_secret(secret, self.environment.get(secret.removeprefix(REFERENCE)))
                for secret in spec.secrets
            ]
        except InvalidRequest as error:
            # Another worker may have the secret.
            raise NotDelivered(f"worker {platform.node()}: {error}") from None

    async def addresses(self, spec: WebhookSpec) -> Sequence[str]:
        """Return the current addresses of the webhook's host.

        Raises ``NotDelivered`` unless all of them are allowed.
        """
        parts = urlsplit(spec.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = await self.resolve(host, port)
            for address in found:
                self.rules.check_address(host, address)
        except InvalidRequest as error:
            raise NotDelivered(str(error)) from None
        except (OSError, UnicodeError) as error:
            raise NotDelivered(f"{host} cannot be resolved: {_plain(error)}") from None
        if not found:
            raise NotDelivered(f"{host} has no address")
        return found


@dataclass
class _Sender:
    """The port ``WebhookSender``."""

    outside: HttpWebhooks
    client: httpx.AsyncClient

    async def send(self, spec: WebhookSpec, event: Event) -> str:
        spec, keys = self.outside.resolved(spec)
        if spec.kind == EMAIL:
            id = message_id(event_id(event))
            mailer = self.outside.mailer
            if mailer is None:
                raise NotDelivered("this worker sends no e-mail")
            return await mailer.mail(spec.recipients, self.outside.alert(event), id)
        try:
            return await self._send(spec, event, keys)
        except NotDelivered as error:
            # A receiver can answer with its own address, which is a secret.
            if spec.kind != WEBHOOK:
                parts = urlsplit(spec.url)
                hidden = {
                    parts.path,
                    *parts.path.split("/"),
                    *(value for _, value in parse_qsl(parts.query)),
                }
                error.args = (
                    redaction.Redactor(secret for secret in hidden if len(secret) > 5).text(
                        str(error)
                    ),
                )
            raise

    async def _send(self, spec: WebhookSpec, event: Event, keys: Sequence[bytes]) -> str:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if spec.kind == WEBHOOK:
            body = event_text(event, ENTRY_MAX).encode()
            headers |= signed_headers(
                message_id(event_id(event)), int(self.outside.clock()), body, keys
            )
            headers["Content-Type"] = "application/cloudevents+json"
        else:
            body = json.dumps(
                message(spec.kind, self.outside.alert(event)), ensure_ascii=False
            ).encode()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer, text = await self._post(spec, headers, body)
        except (TimeoutError, httpx.TimeoutException):
            raise NotDelivered(f"no response within {TIMEOUT_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise NotDelivered(_unreached(error)) from None
        _check(answer, text)
        return f"{answer.status_code} {text}".strip()

    async def _post(
        self, spec: WebhookSpec, headers: Mapping[str, str], body: bytes
    ) -> tuple[httpx.Response, str]:
        """Try the addresses in order.

        Return the response of the first address that accepts the connection, and its text.
        """
        addresses = await self.outside.addresses(spec)
        whole = TIMEOUT_S
        for address in addresses[:-1]:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._post_to(address, spec.url, headers, body, whole * CONNECT_SHARE)
        return await self._post_to(addresses[-1], spec.url, headers, body, whole)

    async def _post_to(
        self,
        address: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        connect_timeout_s: float,
    ) -> tuple[httpx.Response, str]:
        parts = urlsplit(url)
        there = httpx.URL(url).copy_with(host=address)
        # The certificate is checked against the name and not the address.
        named = {"sni_hostname": parts.hostname} if parts.scheme == "https" else {}
        to = {"Host": parts.netloc, "User-Agent": "crawler-lifecycle"}
        content = bytearray()
        within = httpx.Timeout(TIMEOUT_S, connect=connect_timeout_s)
        async with self.client.stream(
            "POST", there, content=body, headers={**headers, **to}, extensions=named, timeout=within
        ) as answer:
            # The status decides the result of the delivery, so an error while reading the body does
            # not matter.
            with suppress(httpx.HTTPError, TimeoutError):
                async with asyncio.timeout(WORDS_S):
                    async for chunk in answer.aiter_raw(ANSWER_MAX):
                        content += chunk
                        if len(content) >= ANSWER_MAX:
                            break
        return answer, _plain(bytes(content[:ANSWER_MAX]).decode(errors="replace"))


def _check(answer: httpx.Response, text: str) -> None:
    """Raise ``NotDelivered`` unless the receiver has accepted the event."""
    status = answer.status_code
    if 200 <= status < 300:
        return
    if status == httpx.codes.GONE:
        raise ReceiverGone("the receiver returned 410, so it wants no more events")
    if 300 <= status < 400:
        to = _plain(answer.headers.get("location", ""))[:200]
        raise NotDelivered(
            f"the receiver returned {status}, to {to!r}: redirects are not followed; use that "
            "address"
        )
    error = NotDelivered(f"the receiver returned {status}: {text or 'no text'}")
    if status in (429, 503):
        error.retry_after_s = seconds_to_wait(answer.headers.get("retry-after"), datetime.now(UTC))
    raise error


def _unreached(error: BaseException) -> str:
    """Return the reason why there was no response, as a sentence."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            fix = (
                "give it a certificate for its name, or set SSL_CERT_FILE to a file of trusted "
                "authorities"
            )
            return f"the receiver's certificate is refused: {_plain(cause.verify_message)}; {fix}"
        if isinstance(cause, ssl.SSLError):
            return (
                f"TLS with the receiver fails: {_plain(cause.reason or cause)}; check that it "
                "serves https"
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ReadError | httpx.WriteError) or not str(error):
        return "the receiver closed the connection without a response"
    return f"the receiver cannot be reached: {_plain(error)}"


def _plain(text: object) -> str:
    """Return the string as one line without control characters."""
    line = str(text).strip() or (type(text).__name__ if isinstance(text, Exception) else "")
    return printable(line)[:ANSWER_MAX].strip()

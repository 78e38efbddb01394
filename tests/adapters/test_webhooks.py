"""Deliveries over HTTP: what is sent, where to, and what a receiver can do to us."""

from __future__ import annotations

import asyncio
import ipaddress
import platform
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from crawler_lifecycle.cloudevents import cloud_event
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.features.webhooks import adapters as webhooks
from crawler_lifecycle.features.webhooks.adapters import HttpWebhooks
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.domain.signing import message_id
from crawler_lifecycle.features.webhooks.ports import ReceiverGone
from crawler_lifecycle.ports.runs import Event
from tests.support.certificates import certificate
from tests.support.faulty_http import Answer, serving
from tests.support.hostile_addresses import HOSTILE
from tests.support.receiver import ENVIRONMENT, OTHER, SECRET, Receiver

EVENT = Event(
    7,
    3,
    "uid",
    1,
    "run.ended",
    {"run_id": 3, "cause": "Aus, größer"},
    datetime(2026, 3, 1, tzinfo=UTC),
    "runs/3",
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with serving(server):
        yield server


def send(
    url: str, *secrets: str, times: int = 1, timeout_s: float = webhooks.TIMEOUT_S, **options: Any
) -> None:
    """Deliver one event."""
    rules = WebhookRules(options.pop("networks", ()), options.pop("loopback", True))
    outside = HttpWebhooks(rules, **{"environment": ENVIRONMENT, **options})
    spec = WebhookSpec(url, list(secrets) or ["env:CRAWL_HOOK"])

    async def deliver() -> None:
        async with outside.connections() as sender:
            for _ in range(times):
                await sender.send(spec, EVENT)

    with patch.object(webhooks, "TIMEOUT_S", timeout_s):
        asyncio.run(deliver())


def at(*addresses: str) -> Any:
    """A name server that returns one address after the other, and the last one for ever."""
    left = list(addresses)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return [left.pop(0) if len(left) > 1 else left[0]]

    return resolve


def having(*addresses: str) -> Any:
    """A name server that returns all addresses each time."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.mark.parametrize("secret", [SECRET, OTHER])
def test_it_is_the_document_of_the_event_signed_with_both_secrets(secret: str) -> None:
    receiver = Receiver(secret)
    with serving(receiver):
        send(f"{receiver.url}/crawls?shop=7", "env:CRAWL_HOOK", "env:CRAWL_HOOK_NEXT")
    assert receiver.taken == [cloud_event(EVENT)]
    assert receiver.ids == [message_id(str(cloud_event(EVENT)["id"]))]


def test_connections_are_kept(receiver: Receiver) -> None:
    send(receiver.url, times=20)
    assert len(receiver.taken) == 20


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(500, b"on\x1b[31m fire"), "returned 500: on"),
        (Answer(404, b""), "returned 404: no text"),
        (
            Answer(302, b"", headers={"Location": "http://169.254.169.254/"}),
            "redirects are not followed",
        ),
        (Answer(410, b""), "wants no more events"),
    ],
)
def test_an_answer_that_is_no_yes(receiver: Receiver, answer: Answer, words: str) -> None:
    receiver.faults.append(answer)
    with pytest.raises(NotDelivered, match=words) as failed:
        send(receiver.url)
    assert isinstance(failed.value, ReceiverGone) == (answer.status == 410)
    assert str(failed.value).isprintable()
    assert receiver.requests == 1, "no second call for any reason"


def test_how_long_to_wait_is_heard(receiver: Receiver) -> None:
    receiver.faults.append(Answer(429, b"", headers={"Retry-After": "30"}))
    with pytest.raises(NotDelivered) as failed:
        send(receiver.url)
    assert failed.value.retry_after_s == 30


@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_all_of_it_has_one_time_limit(receiver: Receiver, fault: str) -> None:
    receiver.faults.append(fault)
    with pytest.raises(NotDelivered, match="no response within"):
        send(receiver.url, timeout_s=0.3)


def test_a_name_server_that_is_silent_has_the_same(receiver: Receiver) -> None:
    async def silent(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(600)
        return []

    with pytest.raises(NotDelivered, match="no response within"):
        send("https://hooks.example.com/", resolve=silent, timeout_s=0.2)


@contextmanager
def endless(
    head: bytes = b"HTTP/1.1 500 No\r\nContent-Length: 1073741824\r\n\r\n",
    piece: bytes = b"x" * 65536,
) -> Iterator[tuple[str, list[int]]]:
    """A server that sends ``head`` and then endless data. Records how many bytes it could send."""
    sent, over = [0], threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            there, _ = listener.accept()
            with closing(there):
                there.settimeout(30)
                there.recv(65536)
                there.sendall(head)
                while not over.wait(0 if piece else 0.05):
                    try:
                        sent[0] += there.send(piece)
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", sent
        finally:
            over.set()
            thread.join(60)


@pytest.mark.parametrize("status", [204, 500])
def test_a_status_holds_whatever_becomes_of_the_words(status: int) -> None:
    """The body never arrives."""
    with endless(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n" % status, b"") as (url, _):
        if status < 300:
            send(url)
        else:
            with pytest.raises(NotDelivered, match="returned 500: no text"):
                send(url)


def test_a_gigabyte_is_not_read() -> None:
    with endless() as (url, sent):
        with pytest.raises(NotDelivered, match="returned 500: x") as failed:
            send(url)
        assert len(str(failed.value)) < 1100
    assert sent[0] < 64 * 2**20, "what the buffers of the system hold, and no more"


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "169.254.169.254", "127.0.0.1", "::ffff:192.168.0.1", "fd00:ec2::254"]
)
def test_a_name_that_leads_inside_is_not_called(address: str) -> None:
    with pytest.raises(NotDelivered, match="LIFECYCLE_WEBHOOKS__NETWORKS"):
        send("https://hooks.example.com/", loopback=False, resolve=at(address))


def test_what_is_refused_when_it_is_made_is_not_called_either() -> None:
    """A definition may be older than the rules, or edited in the database: its host is not even
    resolved.
    """

    async def never(host: str, port: int) -> Sequence[str]:
        raise AssertionError(f"{host} was looked up")

    for url in HOSTILE:
        with pytest.raises((NotDelivered, InvalidRequest)):
            send(url, loopback=False, resolve=never)
    for name in ("AWS_SECRET_ACCESS_KEY", "CRAWL_SHOP"):
        environment = Mock(get=Mock(side_effect=AssertionError("it was read")))
        with pytest.raises(NotDelivered, match="LIFECYCLE_WEBHOOKS__ENV_PREFIX"):
            send(
                "https://8.8.8.8/",
                f"env:{name}",
                environment=environment,
                loopback=False,
                resolve=never,
            )


def test_one_bad_address_among_good_ones_is_enough() -> None:
    with pytest.raises(NotDelivered, match=r"10\.0\.0\.1 is private"):
        send("https://hooks.example.com/", loopback=False, resolve=having("8.8.8.8", "10.0.0.1"))


def test_http_is_for_a_developers_machine(receiver: Receiver) -> None:
    with pytest.raises(NotDelivered, match="https"):
        send(receiver.url, loopback=False, networks=[ipaddress.ip_network("127.0.0.0/8")])
    assert receiver.requests == 0


def test_it_is_asked_at_every_delivery_and_the_answer_is_what_is_called(receiver: Receiver) -> None:
    """The name first resolves to the receiver, then to an internal address; it is resolved only
    once for each delivery.
    """
    url = receiver.url.replace("127.0.0.1", "localhost")
    spec = WebhookSpec(url, ["env:CRAWL_HOOK"])
    changing = at("127.0.0.1", "169.254.169.254")
    outside = HttpWebhooks(WebhookRules(loopback=True), environment=ENVIRONMENT, resolve=changing)

    async def twice() -> None:
        async with outside.connections() as sender:
            await sender.send(spec, EVENT)
            with pytest.raises(NotDelivered, match="metadata"):
                await sender.send(spec, EVENT)

    asyncio.run(twice())
    assert len(receiver.taken) == 1


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate for hooks.example.com with its key, which is the only trusted one."""
    file = certificate(tmp_path / "certificate.pem", "hooks.example.com")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return file


def test_the_certificate_is_checked_for_the_name(certified: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certified)
    receiver = Receiver()
    with serving(receiver, context):
        port = receiver.url.rpartition(":")[2]
        send(f"https://hooks.example.com:{port}/", resolve=at("127.0.0.1"))
        assert len(receiver.taken) == 1
        with pytest.raises(NotDelivered, match="certificate is refused: Hostname mismatch"):
            send(f"https://other.example.com:{port}/", resolve=at("127.0.0.1"))
    assert len(receiver.taken) == 1


def test_the_next_address_is_tried_when_one_is_dead(receiver: Receiver) -> None:
    send(receiver.url, resolve=having("127.0.0.2", "127.0.0.1"))
    assert len(receiver.taken) == 1


def test_the_next_address_is_tried_when_one_swallows_connections(receiver: Receiver) -> None:
    """As with IPv6 where its route leads nowhere: nobody accepts, and the backlog is full."""
    port = int(receiver.url.rpartition(":")[2])
    with ExitStack() as held:
        deaf = held.enter_context(closing(socket.create_server(("127.0.0.2", port), backlog=0)))
        for _ in range(2):
            one = held.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        send(receiver.url, resolve=having("127.0.0.2", "127.0.0.1"), timeout_s=4.0)
    assert len(receiver.taken) == 1


@pytest.mark.parametrize(
    ("environment", "words"),
    [({}, "CRAWL_HOOK is not set"), ({"CRAWL_HOOK": "hunter2"}, "is not a valid webhook secret")],
)
def test_without_a_secret_nothing_leaves(
    receiver: Receiver, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(NotDelivered, match=words) as failed:
        send(receiver.url, environment=environment)
    assert "hunter2" not in str(failed.value)
    assert str(failed.value).startswith(f"worker {platform.node()}: "), (
        "others may have other variables"
    )
    assert receiver.requests == 0


def test_no_proxy_and_no_credentials_of_the_environment(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    send(receiver.url)
    assert len(receiver.taken) == 1


def test_the_time_of_the_try_is_signed(receiver: Receiver) -> None:
    with pytest.raises(NotDelivered, match="400: Message timestamp too old"):
        send(receiver.url, clock=lambda: time.time() - 3600)

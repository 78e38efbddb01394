"""Pusher: what a server receives that checks signatures and limits, and what is reported and done
when it does not.
"""

from __future__ import annotations

import builtins
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr

from crawler_lifecycle.activities.shared import PUSH_S
from crawler_lifecycle.adapters.outbox_notifier import OutboxNotifier
from crawler_lifecycle.adapters.pusher import CALLS_MAX, DATA_MAX, PusherNotifier
from crawler_lifecycle.cloudevents import cloud_event
from crawler_lifecycle.compose import build_notifiers
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.settings import PusherSettings, Settings
from crawler_lifecycle.workflows.policies import POLICIES
from tests.clusters.local.local_fixture import wait_until
from tests.support.faulty_http import Answer
from tests.support.ports import deaf_port
from tests.support.pusher_server import APP_ID, KEY, SECRET, PusherServer, pusher_server

UID = "0123456789abcdef" * 2
AT = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)


def _event(type: str = "run.changed", seq: int = 3, **body: object) -> Event:
    return Event(
        seq,
        7,
        UID,
        2,
        type,
        {"run_id": 7, "crawler": "services", "status": "PROCESSING", **body},
        AT,
        "runs/7",
    )


def _notifier(url: str, **options: Any) -> PusherNotifier:
    host, _, port = url.removeprefix("http://").partition(":")
    values: dict[str, Any] = {
        "app_id": APP_ID,
        "key": KEY,
        "secret": SECRET,
        "channel": "private-crawls private-crawl-run-{run_id}",
        "host": host,
        "port": int(port),
        "tls": False,
        "timeout_s": 120.0,
    }
    return PusherNotifier(**{**values, **options})


@pytest.fixture
def server() -> Iterator[PusherServer]:
    with pusher_server() as server:
        yield server


@pytest.fixture
def notifier(server: PusherServer) -> Iterator[PusherNotifier]:
    notifier = _notifier(server.url)
    yield notifier
    notifier.close()


# --- what arrives ---------------------------------------------------------------------------------


def test_an_event_is_triggered_under_its_type_with_its_document(
    notifier: PusherNotifier, server: PusherServer
) -> None:
    event = _event(cause="é \U0001f600 \u2028 \ud800", tasks={"RUNNING": 2})
    notifier.push(event)
    notifier.push(event)
    first, second = server.triggered
    assert first == second
    assert (first.name, first.channels) == (
        "run.changed",
        ["private-crawls", "private-crawl-run-7"],
    )
    assert first.data == cloud_event(event)
    assert first.data["id"] == f"7-{UID}/2/run.changed/3"


@pytest.mark.parametrize(
    "body",
    [
        {"cause": "c" * 200_000},
        # The client would count the text's memory, four bytes for each character.
        {"cause": "\U0001f600" * 2_400},
        {"outcome": "o" * 50_000, "tasks": {"RUNNING": 1}},
        {"tasks": {f"STATUS_{n}": n for n in range(5_000)}},
        {"\u00e9" * 10_000: 1},
    ],
)
def test_no_message_is_too_large(
    notifier: PusherNotifier, server: PusherServer, body: dict[str, Any]
) -> None:
    notifier.push(_event(**body))
    [arrived] = server.triggered
    assert arrived.bytes <= DATA_MAX
    assert arrived.data["data"]["truncated"] is True
    assert arrived.data["data"]["status"] == "PROCESSING"


def test_a_message_that_just_fits_is_left_alone(
    notifier: PusherNotifier, server: PusherServer
) -> None:
    notifier.push(_event(cause=""))
    notifier.push(_event(cause="c" * (DATA_MAX - server.triggered[-1].bytes)))
    assert server.triggered[-1].bytes == DATA_MAX
    assert "truncated" not in server.triggered[-1].data["data"]


def test_channels_are_filled_in(server: PusherServer) -> None:
    channel = "all  crawler-{crawler} run-{run_id} {crawler}.{run_id} all"
    notifier = _notifier(server.url, channel=channel)
    notifier.push(_event())
    notifier.push(_event(crawler="strange name/é"))
    notifier.push(Event(4, 9, UID, 1, "run.note", {}, AT, "runs/9"))
    assert [t.channels for t in server.triggered] == [
        ["all", "crawler-services", "run-7", "services.7"],
        ["all", "crawler-strange_name__", "run-7", "strange_name__.7"],
        ["all", "run-9"],
    ]
    only = _notifier(server.url, channel="crawler-{crawler}")
    with pytest.raises(NotDelivered, match="LIFECYCLE_PUSHER__CHANNEL"):
        only.push(Event(4, 9, UID, 1, "run.note", {}, AT, "runs/9"))
    notifier.close()
    only.close()


def test_check_asks_with_the_key_and_triggers_nothing(
    notifier: PusherNotifier, server: PusherServer
) -> None:
    told = notifier.check()
    assert server.url in told
    assert "private-crawl-run-{run_id}" in told
    assert server.triggered == []
    assert server.requests == 1


# --- what does not --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"secret": "canary-wrong"}, r"401: Invalid signature.*check LIFECYCLE_PUSHER__KEY.*clock"),
        ({"key": "otherkey"}, r"401: App key otherkey not in this cluster.*LIFECYCLE_PUSHER__KEY"),
        ({"app_id": "1"}, r"404: Unknown app_id; check LIFECYCLE_PUSHER__APP_ID"),
    ],
)
def test_wrong_settings_are_named(server: PusherServer, wrong: dict[str, Any], words: str) -> None:
    notifier = _notifier(server.url, **wrong)
    for call in (notifier.check, lambda: notifier.push(_event())):
        with pytest.raises(NotDelivered, match=words):
            call()
    assert server.triggered == []
    notifier.close()


def test_a_clock_that_is_wrong_is_named(
    notifier: PusherNotifier, server: PusherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pusher.http

    class Late:
        time = staticmethod(lambda: time.time() - 601)

    monkeypatch.setattr(pusher.http, "time", Late)
    with pytest.raises(NotDelivered, match=r"401: Timestamp expired.*clock of this machine"):
        notifier.push(_event())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(400, b"bad channel"), r"400: bad channel; check LIFECYCLE_PUSHER__CHANNEL"),
        (Answer(403, b"over quota"), r"403: over quota; the app is disabled or over its quota"),
        (Answer(413, b"too large"), r"413: too large; the server accepts less"),
        (Answer(429, b""), r"429: no reason given; too many messages"),
        (Answer(500, b"<h1>oops</h1>\nmore"), r"500: <h1>oops</h1> more"),
        (Answer(503, b"x" * 200_000), r"503: x{300}$"),
        (Answer(301, b"", headers={"Location": "http://127.0.0.1:9/"}), r"returned 301"),
        (
            Answer(200, b"<html>log in to the network</html>", "text/html"),
            r"200 with something other than JSON",
        ),
        (Answer(200, b""), r"200 with something other than JSON"),
    ],
)
def test_answers_that_are_no_delivery(
    notifier: PusherNotifier, server: PusherServer, answer: Answer, words: str
) -> None:
    server.faults.append(answer)
    with pytest.raises(NotDelivered, match=words):
        notifier.push(_event())
    assert server.requests == 1, "retries belong to the caller"
    notifier.push(_event())
    assert len(server.triggered) == 1


@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_a_server_that_hangs_or_trickles_costs_no_more_than_the_timeout(
    notifier: PusherNotifier, server: PusherServer, fault: str
) -> None:
    server.faults.extend([fault] * 2)
    impatient = _notifier(server.url, timeout_s=0.2)
    for _ in range(2):
        with pytest.raises(NotDelivered, match=r"no response within 0\.2 s"):
            impatient.push(_event())
    wait_until(lambda: not server.faults)  # the calls themselves have long timeouts
    notifier.push(_event())
    assert len(server.triggered) == 1
    impatient.close()


def test_a_name_server_that_hangs_costs_no_more_than_the_timeout(
    server: PusherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = _notifier(server.url, timeout_s=0.2)
    over, look_up = threading.Event(), socket.getaddrinfo

    def hang(*args: Any, **kwargs: Any) -> Any:
        over.wait(150)
        return look_up(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with pytest.raises(NotDelivered, match="no response within"):
        notifier.push(_event())
    over.set()
    notifier.close()


def test_calls_that_were_left_behind_are_bounded(
    server: PusherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = _notifier(server.url, timeout_s=0.05)
    over, begun = threading.Event(), list[Any]()

    def hang(*arguments: Any) -> None:
        begun.append(arguments)
        over.wait(150)

    with monkeypatch.context() as hanging:
        hanging.setattr(notifier._pusher, "trigger", hang)
        for _ in range(CALLS_MAX):
            with pytest.raises(NotDelivered, match="no response within"):
                notifier.push(_event())
        wait_until(lambda: len(begun) == CALLS_MAX)
        with pytest.raises(NotDelivered, match="earlier calls are still waiting"):
            notifier.push(_event())
    assert len(begun) == CALLS_MAX
    over.set()

    def is_back() -> bool:
        with suppress(NotDelivered):
            notifier.push(_event())
        return bool(server.triggered)

    wait_until(is_back)
    notifier.close()


def test_an_answer_that_is_lost_is_followed_by_the_same_event(
    notifier: PusherNotifier, server: PusherServer
) -> None:
    server.faults.append("drop")
    with pytest.raises(NotDelivered, match="cannot be reached"):
        notifier.push(_event())
    notifier.push(_event())
    assert server.triggered[0] == server.triggered[1]


def test_a_server_that_is_not_there() -> None:
    with deaf_port() as port:
        notifier = _notifier(f"http://127.0.0.1:{port}")
        for call in (notifier.check, lambda: notifier.push(_event())):
            words = rf"Pusher app {APP_ID} at http://127.0.0.1:{port} cannot be reached"
            with pytest.raises(NotDelivered, match=words):
                call()
    notifier.close()


def test_the_secret_is_told_to_nobody(
    server: PusherServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    notifier, impatient = _notifier(server.url), _notifier(server.url, timeout_s=0.2)
    signature = "0123456789abcdef" * 4
    echo = f'wrong: POST /apps/1/events?auth_key={KEY}&auth_signature={signature} "{signature}" key {SECRET}'.encode()
    faults: list[str | Answer] = [
        *(Answer(status, echo) for status in (400, 401, 403, 413, 429, 500)),
        "drop",
        "hang",
    ]
    told = repr(notifier)
    for fault in faults:
        server.faults.append(fault)
        with pytest.raises(NotDelivered) as caught:
            (impatient if fault == "hang" else notifier).push(_event())
        wait_until(lambda: not server.faults)
        assert caught.value.__cause__ is None, "causes travel with the failure"
        told += "".join(traceback.format_exception(caught.value))
    with pytest.raises(NotDelivered) as caught:
        notifier.push(_event(bad=object()))
    told += "".join(traceback.format_exception(caught.value)) + notifier.check()
    assert SECRET not in told + caplog.text
    assert signature not in told
    notifier.close()
    impatient.close()


# --- what the settings ask for --------------------------------------------------------------------


def _settings(**pusher: Any) -> Settings:
    values = {"app_id": APP_ID, "key": KEY, "secret": SecretStr(SECRET), "cluster": "eu", **pusher}
    return Settings(pusher=PusherSettings(**values))


def test_all_tries_of_a_push_together_cost_five_seconds_at_most() -> None:
    """The policies bound the number of tries, and ``PUSH_S`` bounds each try of any notifier."""
    own = next(m.le for m in PusherSettings.model_fields["timeout_s"].metadata if hasattr(m, "le"))
    assert own < PUSH_S, "Pusher's own error comes first"
    for name in ("signal_pusher_started", "signal_pusher_changed", "signal_pusher_stopped"):
        retry = POLICIES[name].retry
        tries, pause = retry.maximum_attempts, retry.initial_interval.total_seconds()
        assert 1 <= tries <= 3
        most = retry.maximum_interval.total_seconds()
        pauses = sum(min(most, pause * retry.backoff_coefficient**n) for n in range(tries - 1))
        assert tries * PUSH_S + pauses <= 5


def test_the_settings_choose_the_notifier(server: PusherServer) -> None:
    assert [type(one) for one in build_notifiers(Settings())] == [OutboxNotifier]
    (cloud,) = build_notifiers(_settings())
    assert isinstance(cloud, PusherNotifier)
    assert repr(cloud) == f"<PusherNotifier Pusher app {APP_ID} at https://api-eu.pusher.com:443>"
    cloud.close()
    host, port = server.url.removeprefix("http://").split(":")
    (own,) = build_notifiers(_settings(host=host, port=int(port), tls=False))
    assert isinstance(own, PusherNotifier)
    own.push(_event())
    assert server.triggered[0].channels == ["private-crawls", "private-crawl-run-7"]
    own.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"app_id": "my-app"}, r"LIFECYCLE_PUSHER__APP_ID: 'my-app' is not allowed.*digits"),
        ({"key": " "}, r"LIFECYCLE_PUSHER__KEY: missing"),
        ({"secret": SecretStr("")}, r"LIFECYCLE_PUSHER__SECRET: missing"),
        (
            {"host": "https://api-eu.pusher.com"},
            r"LIFECYCLE_PUSHER__HOST: 'https://.*without scheme and port",
        ),
        ({"host": "localhost:6001"}, r"LIFECYCLE_PUSHER__HOST.*without scheme and port"),
        ({"cluster": "eu/"}, r"LIFECYCLE_PUSHER__CLUSTER: 'eu/'"),
        ({"channel": " "}, r"LIFECYCLE_PUSHER__CHANNEL: ' ' is not allowed"),
        ({"channel": "with#sign"}, r"LIFECYCLE_PUSHER__CHANNEL: 'with#sign'"),
        ({"channel": "{run}"}, r"LIFECYCLE_PUSHER__CHANNEL: '\{run\}'.*\{run_id\} and \{crawler\}"),
        ({"channel": "x" * 190 + "{run_id}"}, r"LIFECYCLE_PUSHER__CHANNEL.*at most 200"),
        (
            {"channel": " ".join(f"c{n}" for n in range(101))},
            r"LIFECYCLE_PUSHER__CHANNEL.*1 to 100 channel names",
        ),
        ({"channel": "private-encrypted-crawls"}, r"LIFECYCLE_PUSHER__CHANNEL.*private-…"),
    ],
)
def test_settings_with_which_nothing_can_be_pushed(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        build_notifiers(_settings(**wrong))
    assert SECRET not in str(caught.value)


def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://proxy:1")
    with pytest.raises(InvalidRequest, match="HTTPS_PROXY"):
        build_notifiers(_settings())


def test_the_package_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "pusher":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        InvalidRequest, match=r"LIFECYCLE_PUSHER__APP_ID.*pip install 'crawler-lifecycle\[pusher\]'"
    ):
        build_notifiers(_settings())


def test_settings_that_do_not_fit_together_are_refused_without_their_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LIFECYCLE_CONFIG", raising=False)
    monkeypatch.setenv("LIFECYCLE_PUSHER__APP_ID", APP_ID)
    monkeypatch.setenv("LIFECYCLE_PUSHER__SECRET", SECRET)
    with pytest.raises(
        InvalidRequest, match=r"LIFECYCLE_PUSHER: .*key and secret must be set"
    ) as caught:
        Settings.load()
    assert SECRET not in str(caught.value)

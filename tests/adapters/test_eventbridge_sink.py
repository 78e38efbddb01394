"""EventBridge: what arrives on a real bus (moto's), and what is reported and done when it does not."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from crawler_lifecycle.adapters import eventbridge
from crawler_lifecycle.adapters.eventbridge import EventBridgeSink
from crawler_lifecycle.cloudevents import cloud_event
from crawler_lifecycle.compose import build_sink
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.settings import Settings, UrlSettings
from tests.support.event_bus import (
    BUS,
    BUS_ARN,
    SECRET_KEY,
    SESSION_TOKEN,
    EventBusServer,
    aws_error,
    entry_size,
    event_bus_server,
    moto_bus,
    use_aws,
)
from tests.support.faulty_http import Answer
from tests.support.ports import deaf_port

UID = "0123456789abcdef" * 2
AT = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)


def _event(type: str = "run.ended", seq: int = 3, **body: object) -> Event:
    return Event(seq, 7, UID, 2, type, {"run_id": 7, "status": "FAILED", **body}, AT, "runs/7")


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_aws(monkeypatch)


@pytest.fixture
def bus() -> Iterator[EventBusServer]:
    with event_bus_server() as server:
        yield server


@pytest.fixture
def sink(bus: EventBusServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventBridgeSink]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", bus.url)
    for name in ("CONNECT_S", "READ_S"):
        monkeypatch.setattr(eventbridge, name, 120)
    sink = EventBridgeSink(f"eventbridge://{BUS}")
    yield sink
    sink.close()


# --- what arrives ---------------------------------------------------------------------------------


def test_a_rule_matches_and_its_target_gets_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    event = _event(cause="out of memory: é \U0001f600 \u2028", tasks={"FAILED": 2})
    with moto_bus() as (url, arrived):
        monkeypatch.setenv("AWS_ENDPOINT_URL_EVENTBRIDGE", url)
        for bus in (BUS, BUS_ARN):
            sink = EventBridgeSink(f"eventbridge://{bus}")
            assert sink.check() == f"EventBridge bus {BUS_ARN}"
            sink.send(event)
            sink.close()
        missing = EventBridgeSink("eventbridge://missing")
        for call in (missing.check, lambda: missing.send(event)):
            with pytest.raises(
                NotDelivered,
                match=r"ResourceNotFoundException.*create the bus, or set LIFECYCLE_EVE",
            ):
                call()
        missing.close()
        first, second = arrived()
    assert first["detail"] == second["detail"] == cloud_event(event)
    assert first["detail-type"] == "run.ended"
    assert first["source"] == "crawler-lifecycle"
    assert first["resources"] == ["runs/7"]
    assert first["time"] == "2026-11-20T12:00:00Z"


def test_the_file_and_the_bus_have_the_same_text(
    sink: EventBridgeSink, bus: EventBusServer, tmp_path: Any
) -> None:
    file = build_sink(Settings(events=UrlSettings(url=(tmp_path / "events.jsonl").as_uri())))
    for event in (
        _event(cause="é"),
        _event("run.changed"),
        _event(cause="x" * 300_000),
        _event(x="\u2028" * 50_000),
    ):
        file.send(event)
        sink.send(event)
    assert (tmp_path / "events.jsonl").read_text().splitlines() == [
        entry["Detail"] for entry in bus.entries
    ]
    assert [("truncated" in detail["data"]) for detail in bus.details] == [False, False, True, True]


@pytest.mark.parametrize("size", [262_000, 262_144, 300_000, 5_000_000])
def test_no_event_is_too_large(sink: EventBridgeSink, bus: EventBusServer, size: int) -> None:
    sink.send(_event(cause="c" * size, outcome="o" * size, crawler="services"))
    [entry] = bus.entries
    assert entry_size(entry) < 256 * 1024
    data = json.loads(entry["Detail"])["data"]
    assert data["truncated"] is True
    assert (data["run_id"], data["status"], data["crawler"]) == (7, "FAILED", "services")


def test_the_bus_is_asked_for_once_and_not_before_each_event(
    sink: EventBridgeSink, bus: EventBusServer
) -> None:
    for seq in range(3):
        sink.send(_event(seq=seq))
    assert bus.operations == ["DescribeEventBus", "PutEvents", "PutEvents", "PutEvents"]


def test_a_missing_bus_is_noticed_although_it_accepts_events(
    sink: EventBridgeSink, bus: EventBusServer
) -> None:
    bus.buses.clear()
    for _ in range(2):
        with pytest.raises(NotDelivered, match="does not exist"):
            sink.send(_event())
    bus.buses.add(BUS)
    sink.send(_event())
    assert len(bus.entries) == 1


def test_without_the_right_to_poll_events_go_out_with_a_warning(
    sink: EventBridgeSink, bus: EventBusServer, caplog: pytest.LogCaptureFixture
) -> None:
    bus.may_describe = False
    sink.send(_event())
    sink.send(_event())
    assert len(bus.entries) == 2
    assert [
        r.getMessage() for r in caplog.records if "events:DescribeEventBus" in r.getMessage()
    ] != []
    with pytest.raises(NotDelivered, match="events:DescribeEventBus; sending may still work"):
        sink.check()


# --- what does not --------------------------------------------------------------------------------


def test_a_refused_entry_is_not_delivered_although_the_status_is_200(
    sink: EventBridgeSink, bus: EventBusServer
) -> None:
    for code, fix in (
        ("ThrottlingException", "quota"),
        ("InternalFailure", "an internal error"),
        ("NotAuthorizedForSourceException", "policy of the bus"),
        ("NeverHeardOf", "Rate exceeded$"),
    ):
        bus.failed_entry = (code, "Rate exceeded")
        with pytest.raises(NotDelivered, match=rf"{code}: Rate exceeded.*{fix}|{code}: {fix}"):
            sink.send(_event())
    bus.failed_entry = None
    sink.send(_event())
    assert [detail["id"] for detail in bus.details] == [f"7-{UID}/2/run.ended"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"{}", b"[]", b"<html>portal</html>"),
        b'{"FailedEntryCount": 0, "Entries": []}',
        b'{"FailedEntryCount": 0, "Entries": [{}]}',
        b'{"FailedEntryCount": 1, "Entries": [{"EventId": "x"}]}',
        b'{"FailedEntryCount": 0, "Entries": [{"EventId": "x"}, {"EventId": "y"}]}',
        b'{"FailedEntryCount": 0, "Entries": [null]}',
    ],
)
def test_an_answer_without_an_id_is_no_acceptance(
    sink: EventBridgeSink, bus: EventBusServer, body: bytes
) -> None:
    sink.send(_event())
    bus.faults.append(Answer(200, body))
    with pytest.raises(NotDelivered):
        sink.send(_event())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            aws_error("UnrecognizedClientException", "The security token is invalid."),
            "AWS_ACCESS_KEY_ID",
        ),
        (
            aws_error("AccessDeniedException", "User x is not authorized to perform"),
            "events:PutEvents",
        ),
        (
            aws_error("ExpiredTokenException", "The security token is expired"),
            "renew the credentials",
        ),
        (aws_error("ResourceNotFoundException", "Event bus does not exist."), "create the bus"),
        (aws_error("ThrottlingException", "Rate exceeded"), "quota for PutEvents"),
        (aws_error("InternalException", "oops", 500), "an internal error"),
        (Answer(500, b"<html>bad</html>", "text/html"), "500"),
        (Answer(503, b"", "text/plain"), "503"),
        (Answer(302, b"", headers={"Location": "http://127.0.0.1:9/"}), "302|not accept"),
    ],
)
def test_errors_name_the_code_and_the_fix_and_are_tried_once(
    sink: EventBridgeSink, bus: EventBusServer, answer: Answer, words: str
) -> None:
    sink.send(_event())
    before = bus.requests
    bus.faults.append(answer)
    with pytest.raises(NotDelivered, match=words):
        sink.send(_event())
    assert bus.requests == before + 1, "retries belong to the caller"
    assert len(bus.entries) == 1


def test_an_answer_that_is_lost_is_followed_by_the_same_event_under_the_same_id(
    sink: EventBridgeSink, bus: EventBusServer
) -> None:
    sink.send(_event("run.started"))
    bus.faults.append("drop")
    with pytest.raises(NotDelivered, match="check the network"):
        sink.send(_event())
    sink.send(_event())
    assert bus.entries[1] == bus.entries[2]
    assert [detail["id"].rpartition("/")[2] for detail in bus.details] == [
        "run.started",
        "run.ended",
        "run.ended",
    ]


def test_a_bus_that_hangs_or_is_not_there(
    sink: EventBridgeSink, bus: EventBusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.faults.append("hang")
    monkeypatch.setattr(eventbridge, "READ_S", 0.3)
    impatient = EventBridgeSink(f"eventbridge://{BUS}")
    with pytest.raises(NotDelivered, match=r"(?i)timeout.*check the network"):
        impatient.send(_event())
    impatient.close()
    with deaf_port() as port:
        sink._client.meta.events.register(
            "before-send", lambda request, **_: setattr(request, "url", f"http://127.0.0.1:{port}/")
        )
        with pytest.raises(NotDelivered, match=r"Could not connect.*check the network"):
            sink.send(_event())
    assert bus.entries == []


def test_without_credentials(bus: EventBusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", bus.url)
    sink = EventBridgeSink(f"eventbridge://{BUS}")
    for call in (sink.check, lambda: sink.send(_event())):
        with pytest.raises(
            NotDelivered, match=r"Unable to locate credentials.*AWS_ACCESS_KEY_ID.*role of the pod"
        ):
            call()
    sink.close()


def test_no_secret_is_told_to_anybody(
    sink: EventBridgeSink, bus: EventBusServer, caplog: pytest.LogCaptureFixture
) -> None:
    # What AWS answers to a wrong signature: the headers that were signed, the session's token among
    # them.
    message = (
        "The request signature we calculated does not match.\n\nThe Canonical String for this request should have "
        f"been\n'POST\n/\n\nx-amz-security-token:{SESSION_TOKEN}\n' {SECRET_KEY}"
    )
    caplog.set_level(logging.INFO)
    for answer in (
        aws_error("InvalidSignatureException", message),
        aws_error("SignatureDoesNotMatch", message, 403),
    ):
        bus.faults.append(answer)
        with pytest.raises(
            NotDelivered, match=r"does not match; check AWS_ACCESS_KEY_ID.*clock"
        ) as caught:
            sink.send(_event())
        told = (
            "".join(traceback.format_exception(caught.value))
            + caplog.text
            + repr(sink)
            + repr(vars(sink))
        )
        assert SESSION_TOKEN not in told
        assert SECRET_KEY not in told
        assert caught.value.__cause__ is None, "causes travel with the failure"


def test_a_password_in_the_endpoint_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with deaf_port() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:canary@127.0.0.1:{port}")
        sink = EventBridgeSink(f"eventbridge://{BUS}")
        with pytest.raises(NotDelivered) as caught:
            sink.check()
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    sink.close()


# --- what cannot be served ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        *(
            "eventbridge://",
            "eventbridge:/crawls",
            "eventbridge:crawls",
            "eventbridge://my bus",
            "sqs://queue",
            "",
        ),
        *("eventbridge://arn:aws:s3:::bucket", "eventbridge://" + "x" * 257),
        "eventbridge://arn:aws:events:eu-central-1:12:event-bus/crawls",
    ],
)
def test_other_urls_are_refused_with_the_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_EVENTS__URL"):
        build_sink(Settings(events=UrlSettings(url=url)))


def test_a_region_is_needed_and_an_arn_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(InvalidRequest, match=r"LIFECYCLE_EVENTS__URL.*AWS_REGION"):
        EventBridgeSink(f"eventbridge://{BUS}")
    sink = EventBridgeSink("eventbridge://arn:aws:events:us-west-2:123456789012:event-bus/crawls")
    assert "us-west-2" in sink._client.meta.endpoint_url
    sink.close()
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(InvalidRequest, match=r"nope.*check the AWS_"):
        EventBridgeSink(f"eventbridge://{BUS}")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
    with pytest.raises(InvalidRequest, match="check the AWS_"):
        EventBridgeSink("eventbridge://arn:aws:events:us-west-2:123456789012:event-bus/crawls")

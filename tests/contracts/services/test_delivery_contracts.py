"""The contracts of ``EventSink``, ``Notifier``, ``Catalogue`` and ``WorkflowDirectory``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.adapters.event_file import JsonLinesSink
from crawler_lifecycle.adapters.eventbridge import EventBridgeSink
from crawler_lifecycle.adapters.outbox_notifier import OutboxNotifier
from crawler_lifecycle.adapters.pusher import PusherNotifier
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.ports.protocols import Catalogue, EventSink, Notifier
from crawler_lifecycle.ports.runs import Owner
from tests.contracts.services.services_harness import CRAWLERS, event
from tests.support.event_bus import BUS, moto_bus, use_aws
from tests.support.fakes.services import FakeCatalogue, FakeDirectory, FakeNotifier, FakeSink
from tests.support.pusher_server import APP_ID, KEY, SECRET, pusher_server

# --- sinks ----------------------------------------------------------------------------------------


Arrived = Callable[[], list[Any]]


@pytest.fixture(params=["file", "eventbridge", "fake"])
def sink(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[EventSink, Arrived]]:
    if request.param == "fake":
        fake = FakeSink()
        yield fake, lambda: [e.body["run_id"] for e in fake.sent]
    elif request.param == "file":
        path = tmp_path / "deep" / "events.jsonl"
        yield (
            JsonLinesSink(path.as_uri()),
            lambda: [json.loads(s)["data"]["run_id"] for s in path.read_text().splitlines()],
        )
    else:
        use_aws(monkeypatch)
        with moto_bus() as (url, arrived):
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            real = EventBridgeSink(f"eventbridge://{BUS}")
            yield real, lambda: [message["detail"]["data"]["run_id"] for message in arrived()]
            real.close()


def test_events_arrive_in_order_and_a_repeat_is_delivered_again(
    sink: tuple[EventSink, Arrived],
) -> None:
    port, received = sink
    for number in (1, 2, 2):
        port.send(event(number))
    assert received() == [1, 2, 2]
    assert port.name


def test_an_event_that_cannot_be_written_is_not_delivered(sink: tuple[EventSink, Arrived]) -> None:
    port, received = sink
    port.send(event(1))
    for value in (object(), float("nan")):
        with pytest.raises(NotDelivered):
            port.send(event(2, bad=value))
    assert received() == [1]


def test_a_sink_that_can_be_used_says_where_events_go_and_sends_none(
    sink: tuple[EventSink, Arrived],
) -> None:
    port, received = sink
    assert port.check()
    assert received() == []


def test_a_large_event_arrives_cut_and_is_never_refused(sink: tuple[EventSink, Arrived]) -> None:
    port, received = sink
    port.send(event(1, cause="c" * 300_000, lone="\ud800"))
    assert received() == [1]


@pytest.fixture(params=["outbox", "pusher", "fake"])
def notifier(request: pytest.FixtureRequest) -> Iterator[tuple[Notifier, Arrived | None]]:
    """The notifier and, once it sends, what arrived."""
    if request.param == "outbox":
        yield OutboxNotifier(), None
    elif request.param == "fake":
        fake = FakeNotifier()
        yield fake, lambda: [e.body["run_id"] for e in fake.pushed]
    else:
        with pusher_server() as server:
            host, port = server.url.removeprefix("http://").split(":")
            options = {
                "host": host,
                "port": int(port),
                "tls": False,
                "channel": "private-crawls",
                "timeout_s": 120.0,
            }
            real = PusherNotifier(app_id=APP_ID, key=KEY, secret=SECRET, **options)  # type: ignore[arg-type]
            yield real, lambda: [t.data["data"]["run_id"] for t in server.triggered]
            real.close()


def test_a_notifier_takes_an_event_as_often_as_it_is_pushed(
    notifier: tuple[Notifier, Arrived | None],
) -> None:
    port, arrived = notifier
    for number in (1, 2, 2):
        port.push(event(number))
    port.push(event(3, cause="c" * 300_000))
    assert port.sends == (arrived is not None)
    if arrived is not None:
        assert arrived() == [1, 2, 2, 3]
    assert port.name


def test_a_notifier_that_sends_refuses_what_is_no_json(
    notifier: tuple[Notifier, Arrived | None],
) -> None:
    port, arrived = notifier
    if arrived is not None:
        with pytest.raises(NotDelivered):
            port.push(event(1, bad=object()))
        assert arrived() == []


def test_a_notifier_says_where_pushes_go_and_pushes_nothing(
    notifier: tuple[Notifier, Arrived | None],
) -> None:
    port, arrived = notifier
    assert port.check()
    assert arrived is None or arrived() == []


# --- catalogue and directory ----------------------------------------------------------------------


@pytest.fixture(params=["yaml", "fake"])
def catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> Catalogue:
    if request.param == "fake":
        return FakeCatalogue(CRAWLERS)
    plain, other = CRAWLERS
    entries = [
        {
            "name": "plain",
            "kind": "command",
            "command": plain.command,
            "args": {
                name: {"required": a.required, **({"default": a.default} if a.default else {})}
                for name, a in plain.args.items()
            },
            "settings": plain.settings,
            "resources": {"cpu": "500m", "memory": "64Mi"},
            "limits": plain.limits,
        },
        {"name": "other", "project": other.project},
    ]
    file = tmp_path / "crawlers.yaml"
    file.write_text(yaml.safe_dump(entries, sort_keys=False))
    return YamlCatalogue(file)


def test_a_catalogue_knows_its_crawlers(catalogue: Catalogue) -> None:
    assert catalogue.all() == CRAWLERS
    assert catalogue.get("plain") == CRAWLERS[0]
    assert catalogue.get("nope") is None


def test_the_directory_tells_chains_of_one_id_apart() -> None:
    # The adapter meets the same expectations with a real server in tests/workflows.
    directory = FakeDirectory(Owner("w", "second"))
    assert directory.is_open(Owner("w", "second"))
    assert not directory.is_open(Owner("w", "first"))

"""docs/events.md against reality: every example and list is compared with events from the store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.activities.cancellation import CancellationActivities
from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.activities.deployment import DeploymentActivities
from crawler_lifecycle.adapters.eventbridge import EventBridgeSink
from crawler_lifecycle.adapters.pusher import PusherNotifier
from crawler_lifecycle.cloudevents import CAUSE_MAX, CORE, TEXT_MAX, cloud_event
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.ports.protocols import EventSink, Notifier
from crawler_lifecycle.ports.runs import Event, Fence
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.harness import Clock, Harness
from tests.support.databases import make_tables
from tests.support.event_bus import BUS, aws_error, event_bus_server, use_aws
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.services import (
    FakeArchive,
    FakeCatalogue,
    FakeNotifier,
    FakeScheduler,
    FakeSink,
    untried,
)
from tests.support.faulty_http import Answer
from tests.support.pusher_server import APP_ID, KEY, SECRET, pusher_server

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "events.md").read_text()

Document = dict[str, Any]


def _blocks(info: str) -> list[Document]:
    return [json.loads(text) for text in re.findall(rf"^```{info}\n(.*?)^```$", PAGE, re.S | re.M)]


def _rows(heading: str) -> list[str]:
    """Return the names with which the list items below a heading begin."""
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, maxsplit=1, flags=re.M)[1]
    items = re.findall(
        r"^- (`[^:]+`): ", re.split(r"^#+ ", section, maxsplit=1, flags=re.M)[0], re.M
    )
    return [name for item in items for name in re.findall(r"`(\w+)`", item)]


EXAMPLES = [document for document in _blocks("json") if "specversion" in document]
TYPES = {
    names.EVENT_RUN_STARTED,
    names.EVENT_RUN_CHANGED,
    names.EVENT_RUN_STOPPED,
    names.EVENT_RUN_ENDED,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = open_store(make_tables(f"sqlite:///{tmp_path_factory.mktemp('events')}/lifecycle.db"))
    yield store
    store.close()


def deploying(store: Store, notifier: Notifier) -> DeploymentActivities:
    rows = (store.deployment, store.polls, store.runs, store.tasks, store.events)
    return DeploymentActivities(
        *rows, FakeCluster(), FakeScheduler(), [notifier], untried(store), store.entries
    )


def completing(store: Store, sink: EventSink, notifier: Notifier) -> CompletionActivities:
    rows = (
        store.completion,
        store.exports,
        store.deployment,
        store.runs,
        store.tasks,
        store.events,
    )
    return CompletionActivities(
        *rows,
        FakeCluster(),
        sink,
        FakeArchive(),
        FakeCatalogue(),
        [notifier],
        store.sites.robots_of_run,
    )


@pytest.fixture(scope="module")
def real(store: Store) -> list[Document]:
    """The documents of four runs: completed, failed, stopped, and never deployed."""
    harness, notifier = Harness(store, Clock()), FakeNotifier()
    deployment = deploying(store, notifier)
    cancellation = CancellationActivities(
        store.stops, store.polls, store.tasks, store.events, FakeCluster(), [notifier]
    )
    for request_id, failed in (("good", ()), ("bad", (0,))):
        fence = harness.deployed(request_id, tasks=2)
        harness.execute(fence)
        deployment.signal_pusher_started(fence)
        harness.finish(fence, failed)
    fence = harness.run("never")
    store.deployment.refuse_queued(fence, "no crawler named 'services'")
    deployment.signal_pusher_started(fence)
    harness.end(fence)
    fence = harness.run("stopped")
    store.stops.record_stop(fence.run_id, harness.stop(reason="enough"), "s1", fence)
    store.stops.cancel_queued(fence, harness.clock.now)
    harness.end(fence)
    cancellation.signal_pusher_stopped(fence)
    return [cloud_event(event) for event in store.events.events_after(0)]


def _alike(real: list[Document], example: Document) -> list[Document]:
    started = example["data"].get("started")
    return [d for d in real if d["type"] == example["type"] and d["data"].get("started") == started]


def test_the_event_of_the_bus_has_an_example(real: list[Document]) -> None:
    assert {document["type"] for document in real} == TYPES | {names.EVENT_RUN_ATTENTION}
    assert {document["type"] for document in EXAMPLES} == {names.EVENT_RUN_ENDED}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda d: d["id"])
def test_an_example_has_the_fields_and_kinds_of_real_events(
    real: list[Document], example: Document
) -> None:
    found = _alike(real, example)
    assert found
    for document in found:
        assert list(document) == list(example)
        assert list(document["data"]) == list(example["data"])
        for name, value in document["data"].items():
            shown = example["data"][name]
            if value is not None and shown is not None:
                assert type(value) is type(shown), name
                if name.endswith("_at"):
                    assert re.sub(r"\d", "0", value) == re.sub(r"\d", "0", shown)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda d: d["id"])
def test_an_example_is_what_this_program_would_make_of_it(example: Document) -> None:
    data = example["data"]
    time = datetime.fromisoformat(example["time"])
    event = Event(
        int(example["sequence"]),
        data["run_id"],
        data["run_uid"],
        data["attempt"],
        example["type"],
        data,
        time,
        f"runs/{data['run_id']}",
    )
    assert cloud_event(event) == example


@pytest.mark.parametrize("type", sorted(TYPES))
def test_the_lists_name_every_field_and_no_other(real: list[Document], type: str) -> None:
    fields = {
        name: None for document in real if document["type"] == type for name in document["data"]
    }
    assert _rows(type) == list(fields)
    assert _rows("The document") == list(real[0])


def test_all_events_about_a_verdict_say_the_same(real: list[Document]) -> None:
    ended = {
        document["subject"]: document
        for document in real
        if document["type"] == names.EVENT_RUN_ENDED
    }
    told = [document for document in real if document["type"] == names.EVENT_RUN_ATTENTION]
    assert [document["data"]["attention"] for document in told] == ["failed", "failed"]
    for document in told:
        assert document["data"] == ended[document["subject"]]["data"]
        assert document["id"].endswith("/1/run.attention")


def test_the_rule_of_cutting_is_the_one_in_the_code() -> None:
    assert f"cut to {CAUSE_MAX:,} characters" in PAGE
    assert f"to {TEXT_MAX} characters" in PAGE
    rule = PAGE.partition("but never ")[2].partition(".\n")[0]
    assert tuple(re.findall(r"`(\w+)`", rule)) == CORE


def test_the_patterns_match_what_is_said(real: list[Document]) -> None:
    from moto.events.models import EventPattern

    every, two, failed, items = (
        EventPattern.load(json.dumps(pattern)) for pattern in _blocks("json pattern")
    )

    def matching(pattern: Any) -> list[Document]:
        events = [{"source": d["source"], "detail-type": d["type"], "detail": d} for d in real]
        return [event["detail"] for event in events if pattern.matches_event(event)]

    ended = [d for d in real if d["type"] == "run.ended"]
    assert matching(every) == ended
    assert matching(two) == [d for d in ended if d["data"]["status"] == "COMPLETED"] != []
    outcomes = [d["data"]["outcome"] for d in matching(failed)]
    assert outcomes
    assert "cancelled" not in outcomes
    assert matching(items) == [d for d in ended if d["data"]["items"]] != []


# --- what the page promises about delivery --------------------------------------------------------


def fence_of(store: Store, run_id: int) -> Fence:
    row = store.runs.get_run(run_id)
    return Fence(run_id, 1, "chain-1", row.run_uid)


def test_a_run_is_told_of_once_the_bus_accepts_and_every_try_is_on_record(
    store: Store, real: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_aws(monkeypatch)
    fence = fence_of(store, 1)

    def row() -> tuple[Any, ...]:
        [found] = [d for d in store.events.deliveries(1) if d["sink"] == "eventbridge"]
        return found["status"], found["tries"], found["error"], found["delivered_at"]

    with event_bus_server() as bus:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bus.url)
        sink = EventBridgeSink(f"eventbridge://{BUS}")
        completion = completing(store, sink, FakeNotifier())
        bus.failed_entry = ("ThrottlingException", "Rate exceeded")
        faults: list[Callable[[], object]] = [
            lambda: None,  # refused with status 200
            lambda: bus.faults.append(aws_error("InternalException", "oops", 500)),
            lambda: setattr(bus, "failed_entry", None) or bus.faults.append("drop"),
        ]
        for tries, fault in enumerate(faults, 1):
            fault()
            with pytest.raises(NotDelivered) as caught:
                completion.initiate_export_signal(fence)
            assert row() == ("failed", tries, str(caught.value), None)
        completion.initiate_export_signal(fence)
        status, tries, error, delivered_at = row()
        assert (status, tries, error, delivered_at is not None) == ("delivered", 4, None, True)
        sink.close()
    ids = [detail["id"] for detail in bus.details]
    told = names.event_key(fence.run, 1, "run.ended")
    assert ids == [told] * 2, "the lost answer's event came again, under the same id"
    assert bus.details[0] == bus.details[1] == next(d for d in real if d["id"] == ids[0])
    assert store.runs.get_run(1).status.value == "COMPLETED"  # type: ignore[union-attr]


def test_a_push_that_fails_changes_no_run_and_can_be_made_again(
    store: Store, real: list[Document]
) -> None:
    before, fence = store.runs.get_run(1), fence_of(store, 1)
    with pusher_server() as server:
        host, port = server.url.removeprefix("http://").split(":")
        own: dict[str, Any] = {"host": host, "port": int(port), "tls": False, "timeout_s": 120}
        notifier = PusherNotifier(
            app_id=APP_ID, key=KEY, secret=SECRET, channel="private-crawls", **own
        )
        deployment = deploying(store, notifier)
        server.faults.extend([Answer(429, b"slow down"), "drop", Answer(413, b"too large")])
        for _ in range(3):
            with pytest.raises(NotDelivered):
                deployment.signal_pusher_started(fence)
        [row] = [d for d in store.events.deliveries(1) if d["sink"] == "pusher"]
        assert (row["type"], row["status"], row["tries"]) == ("run.started", "failed", 3)
        assert "returned 413: too large" in str(row["error"])
        completion = completing(store, FakeSink(), notifier)
        assert completion.resend_pushes(fence) == 1
        assert completion.resend_pushes(fence) == 0, "what arrived is not pushed again"
        notifier.close()
    assert [t.data for t in server.triggered] == [
        d for d in real if d["id"] == names.event_key(fence.run, 1, "run.started")
    ] * 2
    assert store.runs.get_run(1) == before


def test_what_is_delivered_stays_delivered(store: Store, real: list[Document]) -> None:
    sink = FakeSink()
    completion = completing(store, sink, FakeNotifier())
    for _ in range(2):
        completion.initiate_export_signal(fence_of(store, 2))
    assert [cloud_event(event) for event in sink.sent] == [
        d for d in real if d["id"] == names.event_key(fence_of(store, 2).run, 1, "run.ended")
    ] * 2

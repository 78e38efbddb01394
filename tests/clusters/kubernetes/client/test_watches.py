"""A watch shows changes in order; anything else is an error, and closing a watch ends it at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import (
    ApiError,
    NoAnswer,
    PositionExpired,
    RequestRefused,
    TooManyRequests,
    Unreadable,
)
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, decode
from crawler_lifecycle.clusters.kubernetes.client.watches import Watch, WatchEvent
from tests.clusters.local.local_fixture import wait_until
from tests.support.kube_api import (
    Answer,
    FakeApiServer,
    Fault,
    Garbage,
    Mutate,
    Silence,
    StreamEnds,
    StreamError,
    throttled,
)
from tests.support.kube_api.clients import PATIENT_S
from tests.support.kube_objects import job


@pytest.fixture
def jobs(api: Api, server: FakeApiServer) -> Iterator[Callable[..., Watch]]:
    opened: list[Watch] = []
    server.controllers.makes_pods = False

    def watch(**more: object) -> Watch:
        version = (
            more.pop("resource_version", None) or api.listing(api.jobs_path(), Job).resource_version
        )
        options = {"timeout_s": 60, **more}
        stream = api.watch(api.jobs_path(), resource_version=version, **options)  # type: ignore[arg-type]
        opened.append(stream)
        return stream

    yield watch
    for stream in opened:
        stream.close()


def _told(event: WatchEvent) -> tuple[str, str]:
    return event.type, decode(Job, event.object).metadata.name


def test_changes_come_in_order_and_each_says_where_to_go_on(
    api: Api, server: FakeApiServer, jobs: Callable[..., Watch]
) -> None:
    stream = jobs()
    api.post(api.jobs_path(), job("a"))
    api.patch(api.jobs_path("a"), {"metadata": {"labels": {"x": "1"}}})
    api.delete(api.jobs_path("a"), {"propagationPolicy": "Background"})
    api.post(api.jobs_path(), job("b"))
    events = [next(stream) for _ in range(4)]
    assert [_told(event) for event in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "b"),
    ]
    again = jobs(resource_version=events[1].resource_version)
    assert [_told(next(again)) for _ in range(2)] == [("DELETED", "a"), ("ADDED", "b")]
    assert server.requests[-1].query["allowWatchBookmarks"] == "true"
    assert server.requests[-1].query["timeoutSeconds"] == "60"


def test_bookmarks_move_the_place_without_a_change(
    api: Api, server: FakeApiServer, jobs: Callable[..., Watch]
) -> None:
    stream = jobs(labels="run=1")
    api.post(api.jobs_path(), job("other"))
    wait_until(lambda: server.watching)
    server.bookmark()
    event = next(stream)
    assert (event.type, event.resource_version) == ("BOOKMARK", str(server.store.version))


def test_the_servers_end_is_an_end(server: FakeApiServer, jobs: Callable[..., Watch]) -> None:
    stream = jobs(timeout_s=1)
    assert [event.type for event in stream] == [
        "BOOKMARK"
    ]  # it sends the position to continue from, then ends
    assert list(stream) == []


@pytest.mark.parametrize("reason", ["Expired", "Gone"])
def test_a_place_that_is_forgotten_is_told_within_the_stream(
    server: FakeApiServer, jobs: Callable[..., Watch], reason: str
) -> None:
    server.faults.add("GET", "watch=true", StreamError(410, reason))
    with pytest.raises(
        PositionExpired, match=r"watch jobs in namespace crawls \(410\): too old resource version"
    ):
        next(jobs())


def test_the_servers_own_forgetting(
    api: Api, server: FakeApiServer, jobs: Callable[..., Watch]
) -> None:
    version = api.listing(api.jobs_path(), Job).resource_version
    api.post(api.jobs_path(), job("a"))
    server.store.compact()
    with pytest.raises(PositionExpired):
        next(jobs(resource_version=version))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Answer(410, "too old", "Expired"), PositionExpired),
        (Answer(403, "no"), RequestRefused),
        (throttled("3"), TooManyRequests),
        (Answer(500), ApiError),
        (Silence(), NoAnswer),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_watch_that_does_not_begin(
    server: FakeApiServer, jobs: Callable[..., Watch], fault: Fault, kind: type[ApiError]
) -> None:
    server.faults.add("GET", "watch=true", fault)
    with pytest.raises(kind):
        jobs(silence_s=0.3 if isinstance(fault, Silence) else PATIENT_S)
    wait_until(lambda: server.count("GET", "watch=true"))
    assert server.count("GET", "watch=true") == 1


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (StreamEnds(broken=True), NoAnswer, "was interrupted"),
        (StreamEnds(within_event=True), NoAnswer, "inside an event"),
        (StreamEnds(within_event=True, broken=True), NoAnswer, "was interrupted"),
        (Garbage(b"<html>\n"), Unreadable, "an event of a watch"),
        (Garbage(b'{"type":"ADDED"}\n'), Unreadable, "object"),
        (Garbage(b'{"type":"ADDED","object":{}}\n'), Unreadable, "no resourceVersion"),
        (
            Garbage(b'{"type":"RENAMED","object":{"metadata":{"resourceVersion":"7"}}}\n'),
            Unreadable,
            "'RENAMED'",
        ),
        (
            Garbage(b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd"}}\n'),
            ApiError,
            "etcd",
        ),
        (
            Garbage(b'{"type":"ERROR","object":{"kind":"Status","code":429}}\n'),
            TooManyRequests,
            "429",
        ),
        (Garbage(b'{"type":"ERROR","object":7}\n'), ApiError, "(500)"),
    ],
)
def test_a_stream_that_goes_wrong(
    server: FakeApiServer,
    jobs: Callable[..., Watch],
    fault: Fault,
    kind: type[ApiError],
    words: str,
) -> None:
    server.faults.add("GET", "watch=true", fault)
    with pytest.raises(kind) as caught:
        list(jobs())
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "watch jobs in namespace crawls" in str(caught.value)


def test_events_before_the_end_are_not_lost_by_it(
    api: Api, server: FakeApiServer, jobs: Callable[..., Watch]
) -> None:
    version = api.listing(api.jobs_path(), Job).resource_version
    for name in "abc":
        api.post(api.jobs_path(), job(name))
    server.faults.add("GET", "watch=true", StreamEnds(after=2, within_event=True, broken=True))
    stream = jobs(resource_version=version)
    assert [_told(next(stream)) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]
    with pytest.raises(NoAnswer):
        next(stream)


def test_silence_is_noticed(server: FakeApiServer, jobs: Callable[..., Watch]) -> None:
    stream = jobs(silence_s=PATIENT_S)
    assert stream.call._socket is not None
    # As with a shorter limit, except for the head, which may take long.
    stream.call._socket.settimeout(0.3)
    with pytest.raises(NoAnswer, match="silent for too long"):
        next(stream)
    assert server.count("GET", "watch=true") == 1


@pytest.mark.parametrize("times", [1, 3])
def test_another_thread_ends_it_at_once(
    server: FakeApiServer, jobs: Callable[..., Watch], times: int
) -> None:
    stream = jobs()
    seen: list[object] = []

    def read() -> None:
        try:
            seen.extend(stream)
        except ApiError as error:
            seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: server.watching)
    for _ in range(times):
        stream.close()
    reader.join(60)
    assert not reader.is_alive()
    assert seen == []
    assert list(stream) == []


def test_another_thread_ends_it_between_two_events(
    api: Api, jobs: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader asks for the next event while the other thread is still closing the watch."""
    stream = jobs()
    api.post(api.jobs_path(), job("a"))
    assert _told(next(stream)) == ("ADDED", "a")
    closing, read = threading.Event(), threading.Event()
    really = stream.response.close

    def close() -> None:
        closing.set()
        read.wait(60)
        really()

    monkeypatch.setattr(stream.response, "close", close)
    closer = threading.Thread(target=stream.close)
    closer.start()
    try:
        assert closing.wait(60)
        assert list(stream) == []
    finally:
        read.set()
        closer.join(60)
    assert not closer.is_alive()


def test_closing_one_that_nobody_reads(
    api: Api, server: FakeApiServer, jobs: Callable[..., Watch]
) -> None:
    with jobs() as stream:
        pass
    assert list(stream) == []
    assert api.listing(api.jobs_path(), Job).items == []


def test_the_client_ends_its_watches_when_it_closes(
    api: Api, server: FakeApiServer, jobs: Callable[..., Watch]
) -> None:
    stream = jobs()
    ended = threading.Event()

    def read() -> None:
        try:
            list(stream)
        except NoAnswer:
            ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: server.watching)
    api.close()
    assert ended.wait(60)
    reader.join(60)


def test_an_event_in_many_pieces_is_one(
    api: Api, server: FakeApiServer, jobs: Callable[..., Watch]
) -> None:
    big = "x" * 300_000
    server.faults.add(
        "GET",
        "watch=true",
        Mutate(lambda event: event["object"]["metadata"].update(annotations={"a": big})),
    )
    stream = jobs()
    api.post(api.jobs_path(), job("a"))
    found = decode(Job, next(stream).object)
    assert found.metadata.annotations["a"] == big

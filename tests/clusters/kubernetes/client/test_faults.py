"""Server faults: each becomes one error that names it, after one request and within its limits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.deadlines import Call, Calls
from crawler_lifecycle.clusters.kubernetes.client.errors import (
    ApiError,
    Conflict,
    CredentialsRejected,
    NoAnswer,
    NotFound,
    PositionExpired,
    RequestRefused,
    TooManyRequests,
    Unreadable,
)
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod, decode
from crawler_lifecycle.domain.errors import ClusterUnavailable
from tests.clusters.local.local_fixture import wait_until
from tests.support.kube_api import (
    Answer,
    Cut,
    Drip,
    FakeApiServer,
    Fault,
    Garbage,
    LostAnswer,
    Mutate,
    Reset,
    Silence,
    Truncated,
    throttled,
)
from tests.support.kube_api.clients import hurried, impatient, kept_are_dead, patient
from tests.support.kube_api.store import JOBS, NAMESPACES
from tests.support.kube_objects import job
from tests.support.ports import deaf_port

RIGHT = 'pods is forbidden: User "system:serviceaccount:crawls:worker" cannot list resource "pods" in API group ""'
QUOTA = 'jobs.batch "a" is forbidden: exceeded quota: crawls, requested: count/jobs.batch=1, used: 1, limited: 1'

#: What happens, its error, and the text of the error.
FAULTS: list[tuple[str, Fault, type[ApiError], str]] = [
    ("silence", Silence(), NoAnswer, "no data came from http://127.0.0.1"),
    ("slow drip", Drip(0.2), NoAnswer, "no complete response"),
    ("slow drip of the head", Drip(0.2, head=True), NoAnswer, "no complete response"),
    ("cut body", Cut(20), NoAnswer, "was interrupted"),
    ("cut chunk", Cut(20, chunked=True), NoAnswer, "was interrupted"),
    ("closed without an answer", LostAnswer(), NoAnswer, "was interrupted"),
    ("reset", Reset(), NoAnswer, "was interrupted"),
    ("truncated JSON", Truncated(3), Unreadable, "truncated"),
    ("empty answer", Garbage(b""), Unreadable, "cannot be used"),
    ("a proxy's page", Garbage(b"<html>Bad gateway</html>", "text/html"), Unreadable, "<html>Bad"),
    (
        "no UTF-8",
        Garbage(b'{"kind":"PodList","metadata":{"resourceVersion":"\xff"},"items":[]}'),
        Unreadable,
        "PodList",
    ),
    (
        "nested without end",
        Garbage(b'{"kind":"PodList","x":' + b"[" * 100_000),
        Unreadable,
        "PodList",
    ),
    (
        "a Status with 200",
        Garbage(b'{"kind":"Status","metadata":{},"items":[]}'),
        Unreadable,
        "it is a Status",
    ),
    (
        "no items",
        Garbage(b'{"kind":"PodList","metadata":{"resourceVersion":"1"}}'),
        Unreadable,
        "`items`",
    ),
    (
        "no version",
        Garbage(b'{"kind":"PodList","metadata":{},"items":[]}'),
        Unreadable,
        "no resourceVersion",
    ),
    ("429", throttled(None), TooManyRequests, "asks us to slow down"),
    ("429 Retry-After", throttled("7"), TooManyRequests, "asks us to wait 7 s"),
    (
        "403",
        Answer(403, RIGHT),
        RequestRefused,
        "needs permission to list pods in namespace crawls (403): pods is forbidden",
    ),
    (
        "403 other",
        Answer(403, QUOTA),
        RequestRefused,
        "does not allow us to list pods in namespace crawls (403)",
    ),
    ("404", Answer(404), NotFound, "(404)"),
    ("409", Answer(409), Conflict, "(409)"),
    ("422", Answer(422), RequestRefused, "refused this"),
    (
        "500",
        Answer(500, "etcdserver: request timed out"),
        ApiError,
        "now (500): etcdserver: request timed out",
    ),
    ("redirect", Answer(302, headers={"Location": "http://127.0.0.1:1/"}), ApiError, "(302)"),
    ("an odd status", Answer(299 + 1), ApiError, "(300)"),
]


def _until_given_up(api: Api, fault: Fault) -> AbstractContextManager[None]:
    """Return the limit that the fault reaches, or none if it is reported at once."""
    if isinstance(fault, Silence):
        return impatient(api)
    return hurried(api) if isinstance(fault, Drip) else nullcontext()


@pytest.mark.parametrize(
    ("fault", "kind", "words"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS]
)
def test_a_list_that_goes_wrong(
    api: Api, server: FakeApiServer, fault: Fault, kind: type[ApiError], words: str
) -> None:
    server.faults.add("GET", r"/pods\?", fault, times=None)
    with _until_given_up(api, fault), pytest.raises(ClusterUnavailable) as caught:
        api.listing(api.pods_path(), Pod)
    wait_until(lambda: server.requests)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "pods" in str(caught.value)
    assert caught.value.effect_unknown is False  # a list has none
    assert len(server.requests) == 1  # nothing is retried without Temporal
    server.faults.clear()
    assert api.listing(api.pods_path(), Pod).items == []  # and the client still works afterwards


@pytest.mark.parametrize(
    ("fault", "unknown", "made"),
    [
        (LostAnswer(), True, True),
        (Reset(after_effect=True), True, True),
        (Silence(after_effect=True), True, True),
        (Cut(10), True, True),
        (Truncated(2), True, True),
        (Answer(500), True, False),
        (throttled(), False, False),
        (Answer(403, QUOTA), False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fault) else str(value),
)
def test_a_create_whose_answer_is_lost_may_have_taken_effect(
    api: Api, server: FakeApiServer, fault: Fault, unknown: bool, made: bool
) -> None:
    server.faults.add("POST", r"/jobs", fault)
    with _until_given_up(api, fault), pytest.raises(ApiError) as caught:
        api.post(api.jobs_path(), job("a"))
    assert caught.value.effect_unknown is unknown
    wait_until(lambda: server.requests)
    assert server.count("POST") == 1
    if made:
        wait_until(lambda: server.store.find(JOBS))
        assert decode(Job, api.get(api.jobs_path("a"))).metadata.name == "a"
    else:
        with pytest.raises(NotFound):
            api.get(api.jobs_path("a"))


def test_a_server_that_is_not_there_has_changed_nothing(server: FakeApiServer) -> None:
    with deaf_port() as port:
        server.url = f"http://127.0.0.1:{port}"
        api = patient(server)
        words = r"create jobs in namespace crawls: no connection to http://127.0.0.1:\d+: "
        with pytest.raises(NoAnswer, match=words) as caught:
            api.post(api.jobs_path(), job("a"))
        api.close()
    assert caught.value.effect_unknown is False
    assert "object at 0x" not in str(caught.value)


def test_a_restarted_server_is_found_again(api: Api, server: FakeApiServer) -> None:
    api.listing(api.jobs_path(), Job)
    server.drop_connections()
    wait_until(lambda: kept_are_dead(api))
    assert api.listing(api.jobs_path(), Job).items == []
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", None),
        ("-3", None),
        ("900", 60.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
    ],
)
def test_a_wish_to_wait_is_bounded(
    api: Api, server: FakeApiServer, header: str, seconds: float | None
) -> None:
    server.faults.add("GET", r"/pods\?", throttled(header))
    with pytest.raises(TooManyRequests) as caught:
        api.listing(api.pods_path(), Pod)
    assert caught.value.retry_after_s == seconds


def test_a_503_may_say_when_to_come_back(api: Api, server: FakeApiServer) -> None:
    server.faults.add("GET", r"/pods\?", Answer(503, headers={"Retry-After": "5"}))
    with pytest.raises(ApiError) as caught:
        api.listing(api.pods_path(), Pod)
    assert caught.value.retry_after_s == 5


def test_what_the_server_says_of_its_reasons_is_kept(api: Api, server: FakeApiServer) -> None:
    space = server.add_namespace("going")
    server.store.update(
        NAMESPACES, ("", "going"), lambda found: found["status"].update(phase="Terminating")
    )
    api.namespace = space["metadata"]["name"]
    with pytest.raises(RequestRefused) as caught:
        api.post(api.jobs_path(), job("a"))
    assert (caught.value.status, caught.value.reason, caught.value.causes) == (
        403,
        "Forbidden",
        ("NamespaceTerminating",),
    )
    assert "because it is being terminated" in caught.value.words


def test_an_error_survives_the_way_between_processes(api: Api, server: FakeApiServer) -> None:
    import pickle

    server.faults.add("GET", r"/pods\?", throttled("7"))
    with pytest.raises(TooManyRequests) as caught:
        api.listing(api.pods_path(), Pod)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is TooManyRequests
    assert (str(again), again.status, again.retry_after_s) == (str(caught.value), 429, 7)


# --- pages ----------------------------------------------------------------------------------------


@pytest.fixture
def five(api: Api, server: FakeApiServer) -> FakeApiServer:
    for index in range(5):
        api.post(api.jobs_path(), job(f"job-{index}"))
    server.requests.clear()
    return server


def _names(api: Api) -> list[str]:
    return [found.metadata.name for found in api.listing(api.jobs_path(), Job, limit=2).items]


def test_a_continue_token_that_expires_begins_the_list_anew(api: Api, five: FakeApiServer) -> None:
    five.faults.add(
        "GET", "continue=", Answer(410, "The provided continue parameter is too old", "Expired")
    )
    assert _names(api) == [f"job-{index}" for index in range(5)]
    tokens = ["continue" in request.query for request in five.requests]
    assert tokens == [False, True, False, True, True]


def test_the_servers_own_expired_tokens(api: Api, five: FakeApiServer) -> None:
    def compact(body: dict[str, Any]) -> None:
        five.store.compact()

    five.faults.add("GET", "limit=2", Mutate(compact))
    assert len(_names(api)) == 5
    # The inconsistent token from the 410 was not used, because its page would belong to another
    # time.
    assert ["continue" in request.query for request in five.requests] == [
        False,
        True,
        False,
        True,
        True,
    ]


def test_a_list_that_never_stays_together_is_an_error_and_no_part_of_it_an_answer(
    api: Api, five: FakeApiServer
) -> None:
    five.faults.add("GET", "continue=", Answer(410, "too old", "Expired"), times=None)
    with pytest.raises(PositionExpired, match=r"list jobs in namespace crawls \(410\): too old"):
        _names(api)
    assert len(five.requests) == 6


def test_pages_of_two_moments_are_no_list(api: Api, five: FakeApiServer) -> None:
    def another_moment(body: dict[str, Any]) -> None:
        body["metadata"]["resourceVersion"] = "9"

    five.faults.add("GET", "continue=", Mutate(another_moment))
    assert len(_names(api)) == 5
    five.faults.add("GET", "continue=", Mutate(another_moment), times=None)
    with pytest.raises(PositionExpired, match="have different versions"):
        _names(api)


def test_an_object_on_two_pages_is_no_list(api: Api, five: FakeApiServer) -> None:
    def first_again(body: dict[str, Any]) -> None:
        body["items"][0]["metadata"]["name"] = "job-0"

    five.faults.add("GET", "continue=", Mutate(first_again), times=None)
    with pytest.raises(PositionExpired, match="overlap: job-0 is in them twice"):
        _names(api)


def test_pages_in_a_circle_end(api: Api, five: FakeApiServer) -> None:
    page = b'{"kind":"JobList","metadata":{"resourceVersion":"7","continue":"again"},"items":[]}'
    five.faults.add("GET", "/jobs", Garbage(page), times=None)
    with pytest.raises(Unreadable, match="a page of the list was repeated"):
        _names(api)
    assert len(five.requests) == 2


def test_a_list_that_says_more_remains_and_ends_is_cut(api: Api, five: FakeApiServer) -> None:
    five.faults.add("GET", "/jobs", Mutate(lambda body: body["metadata"].pop("continue") and None))
    with pytest.raises(Unreadable, match="3 objects remain, but no page follows"):
        _names(api)


@pytest.mark.parametrize(
    "fault", [Cut(50), Truncated(2), Silence(), Answer(500), throttled(), Answer(403), Garbage(b"{}")],
    ids=lambda fault: type(fault).__name__,
)  # fmt: skip
def test_a_page_that_goes_wrong_takes_the_list_with_it(
    api: Api, five: FakeApiServer, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    five.faults.add("GET", "continue=", fault, nth=2)
    if isinstance(fault, Silence):  # earlier pages may take long
        page = api._wire.call
        last = iter([False, False, True])

        def call(*args: Any, **more: Any) -> bytes:
            with impatient(api) if next(last) else nullcontext():
                return page(*args, **more)

        monkeypatch.setattr(api._wire, "call", call)
    with pytest.raises(ApiError):
        _names(api)
    wait_until(lambda: len(five.requests) >= 3)
    assert len(five.requests) == 3


def test_null_is_nothing(api: Api, five: FakeApiServer) -> None:
    five.faults.add(
        "GET",
        "/jobs",
        Mutate(lambda body: {**body, "items": None, "metadata": {"resourceVersion": "5"}}),
    )
    assert api.listing(api.jobs_path(), Job).items == []

    def nulls(body: dict[str, Any]) -> None:
        for item in body["items"]:
            item.update(spec=None, status=None)
            item["metadata"].update(
                labels=None, annotations=None, finalizers=None, ownerReferences=None
            )

    five.faults.add("GET", "/jobs", Mutate(nulls))
    found = api.listing(api.jobs_path(), Job).items[0]
    assert (dict(found.metadata.labels), list(found.status.conditions), found.spec.suspend) == (
        {},
        [],
        None,
    )


@pytest.mark.parametrize("missing", ["name", "uid"])
def test_an_object_without_identity_spoils_the_list(
    api: Api, five: FakeApiServer, missing: str
) -> None:
    for change in (lambda meta: meta.pop(missing), lambda meta: meta.update({missing: ""})):

        def spoil(body: dict[str, Any], change: Any = change) -> None:
            change(body["items"][-1]["metadata"])

        five.faults.add("GET", "/jobs", Mutate(spoil))
        with pytest.raises(Unreadable, match=missing):
            api.listing(api.jobs_path(), Job)


# --- credentials ----------------------------------------------------------------------------------


def test_a_401_reads_the_credentials_again_and_then_says_so(
    api: Api, server: FakeApiServer
) -> None:
    api.listing(api.jobs_path(), Job)
    server.tokens = {"new"}
    with pytest.raises(CredentialsRejected) as caught:
        api.listing(api.jobs_path(), Job)
    assert caught.value.status == 401
    assert "rejected our credentials: list jobs in namespace crawls (401): Unauthorized" in str(
        caught.value
    )
    assert "were read again and are still refused" in str(caught.value)
    assert "kubeconfig" in str(caught.value)
    assert len(server.requests) == 2  # the same credentials are not sent twice


def test_a_kubeconfig_with_a_new_token_is_taken_up_in_mid_run(
    api: Api, server: FakeApiServer
) -> None:
    api.listing(api.jobs_path(), Job)
    server.tokens = {"new"}
    server.kubeconfig(token="new")
    api.listing(api.jobs_path(), Job)
    api.listing(api.jobs_path(), Job)
    shown = [request.headers["authorization"] for request in server.requests]
    assert shown == ["Bearer test", "Bearer test", "Bearer new", "Bearer new"]


def test_a_write_that_was_not_let_in_is_sent_again_with_new_credentials(
    api: Api, server: FakeApiServer
) -> None:
    server.tokens = {"new"}
    server.kubeconfig(token="new")
    api.post(api.jobs_path(), job("a"))
    assert server.count("POST") == 2
    assert len(server.store.find(JOBS)) == 1


def test_many_threads_with_one_refusal_read_once(api: Api, server: FakeApiServer) -> None:
    server.tokens = {"new"}

    def wrong(_: int) -> bool:
        try:
            api.listing(api.jobs_path(), Job)
        except CredentialsRejected:
            return True
        return False

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(wrong, range(8))) == [True] * 8
        server.kubeconfig(token="new")
        assert list(threads.map(wrong, range(8))) == [False] * 8


def test_a_kubeconfig_that_is_gone_when_it_is_needed_again_is_told(
    api: Api, server: FakeApiServer
) -> None:
    api.listing(api.jobs_path(), Job)
    server.tokens = {"new"}
    (server.folder / "kubeconfig").write_text("{")
    with pytest.raises(
        CredentialsRejected,
        match=r"the credentials cannot be read again: kubeconfig .* cannot be used",
    ):
        api.listing(api.jobs_path(), Job)


# --- connections that are used again --------------------------------------------------------------


@pytest.mark.parametrize("moment", ["taken", "sent"])
def test_a_call_that_is_cut_at_its_end_takes_nobody_else_with_it(
    api: Api, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The connection is free again after the last byte.

    The call becomes overdue at that moment, when another call uses the connection.
    """
    first: list[Call] = []
    end, uses = Calls.end, Call.uses
    pool = type(api._wire._access.current()[0].pools.connection_from_url(api.host))
    validate = pool._validate_conn

    def ended(self: Calls, call: Call) -> None:
        if not first:
            first.append(call)
            assert api.listing(api.jobs_path(), Job).items == []
        end(self, call)

    def validated(self: Any, connection: Any) -> None:
        validate(self, connection)
        if first and moment == "taken":
            first[0].cut()

    def used(self: Call, sock: Any) -> None:
        uses(self, sock)
        if first and moment == "sent":
            first[0].cut()

    monkeypatch.setattr(Calls, "end", ended)
    monkeypatch.setattr(Call, "uses", used)
    monkeypatch.setattr(pool, "_validate_conn", validated)
    api.listing(api.jobs_path(), Job)
    assert len(server.requests) == 2


def test_calls_are_watched_over_as_soon_as_there_is_a_thread_for_it(
    api: Api, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may be limited to a number of threads."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            api.listing(api.jobs_path(), Job)
    server.faults.add("GET", "/jobs", Drip(0.2))
    with hurried(api), pytest.raises(NoAnswer, match="no complete response"):
        api.listing(api.jobs_path(), Job)

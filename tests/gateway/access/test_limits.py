"""How much one caller may request, and what slow, silent and greedy clients may cost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.gateway import app as gateway_app
from crawler_lifecycle.gateway.access.limits import REQUESTS_MAX, STREAMS_MAX, Quota, RateLimits
from crawler_lifecycle.gateway.access.operations import (
    ACCESS,
    CHECK_S,
    AuthenticationMiddleware,
    Entrance,
    Operations,
    _is_stream,
)
from crawler_lifecycle.gateway.access.tokens import FRESH_S, Caller, Role, TokenFile, new_token
from crawler_lifecycle.web.origins import named_hosts
from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.serving import BodyLimit
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.keys import Keys

QUOTA = Quota(
    max_reads_per_s=2, max_writes_per_s=1, max_concurrent_requests=3, max_concurrent_streams=2
)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def limits(time: Time) -> RateLimits:
    return RateLimits(QUOTA, clock=time)


def _refusal(limits: RateLimits, caller: str | None, writes: bool) -> Problem | None:
    try:
        limits.spend(caller, writes=writes)
    except Problem as problem:
        return problem
    return None


def _spent(limits: RateLimits, caller: str | None, writes: bool = False, most: int = 1000) -> int:
    """Return how many requests succeed until one is refused."""
    for n in range(most):
        refused = _refusal(limits, caller, writes)
        if refused is not None:
            assert (refused.status, refused.code) == (429, "rate_limited")
            assert int(refused.headers["Retry-After"]) >= 1
            return n
    return most


# --- the rate -------------------------------------------------------------------------------------


def test_five_seconds_of_the_rate_may_come_at_once_and_then_the_rate_holds(
    limits: RateLimits, time: Time
) -> None:
    assert _spent(limits, "a") == 10
    assert _spent(limits, "a") == 0
    time.now += 1
    assert _spent(limits, "a") == 2
    time.now += 3600
    assert _spent(limits, "a") == 10


def test_reads_writes_and_callers_are_counted_apart(limits: RateLimits) -> None:
    assert _spent(limits, "a") == 10
    assert _spent(limits, "a", writes=True) == 5
    assert _spent(limits, "b") == 10


@given(st.floats(0.01, 1000), st.lists(st.floats(0, 100), max_size=50))
def test_no_caller_gets_more_than_its_rate_and_one_burst(rate: float, pauses: list[float]) -> None:
    time = Time()
    limits = RateLimits(Quota(max_reads_per_s=rate), clock=time)
    began, done = time.now, 0
    for pause in pauses:
        time.now += pause
        done += _spent(limits, "a", most=50)
    assert done <= max(5 * rate, 1) + (time.now - began) * rate + 1e-6


@given(st.floats(0.01, 1000))
def test_who_waits_as_told_gets_through(rate: float) -> None:
    time = Time()
    limits = RateLimits(Quota(max_writes_per_s=rate), clock=time)
    _spent(limits, "a", writes=True, most=10_000)
    with pytest.raises(Problem) as refused:
        limits.spend("a", writes=True)
    time.now += int(refused.value.headers["Retry-After"])
    limits.spend("a", writes=True)


def test_without_a_quota_or_a_name_nothing_is_counted(limits: RateLimits) -> None:
    assert _spent(limits, None) == 1000
    assert _spent(RateLimits(None), "a") == 1000


def _freely(limits: RateLimits, sender: str, operation: str) -> int:
    """Return how many requests without a role succeed until one is refused."""
    for number in range(1000):
        try:
            limits.spend_freely(sender, operation, 2.0)
        except Problem as problem:
            if problem.status == 429 and sender in problem.detail:
                return number
    return 1000


def test_a_request_that_needs_no_role_is_counted_by_its_sender_and_operation(
    limits: RateLimits, time: Time
) -> None:
    assert [_freely(limits, "203.0.113.1", "readyz") for _ in range(2)] == [10, 0]
    assert [
        _freely(limits, "203.0.113.1", "getAsset"),
        _freely(limits, "203.0.113.2", "readyz"),
    ] == [10, 10]
    time.now += 1
    assert _freely(limits, "203.0.113.1", "readyz") == 2


def test_callers_of_long_ago_are_forgotten(time: Time) -> None:
    limits = RateLimits(QUOTA, clock=time)
    for n in range(25_000):
        limits.spend(f"run {n}", writes=True)
        time.now += 0.001
    assert len(limits._buckets._buckets) < 12_000


# --- places ---------------------------------------------------------------------------------------


def _filled(take: Callable[[], Any]) -> tuple[list[Any], Problem]:
    """Take slots until none is left. Return them, and the refusal of the next one."""
    held: list[Any] = []
    while True:
        slot = take()
        try:
            slot.__enter__()
        except Problem as problem:
            return held, problem
        held.append(slot)


def test_requests_and_streams_have_their_own_places(limits: RateLimits) -> None:
    for stream, most in ((False, 3), (True, 2)):
        held, refused = _filled(
            functools.partial(limits.slot, Caller("a", Role.READ), stream=stream)
        )
        assert len(held) == most
        assert (refused.status, refused.code) == (429, "too_many_at_once")
        with limits.slot(Caller("b", Role.READ), stream=stream):
            pass
        held[0].__exit__(None, None, None)
        with limits.slot(Caller("a", Role.READ), stream=stream):
            pass


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_has_an_owner_on_each_level(stream: bool) -> None:
    """Eight logins of one token once held eight times the limit of the token."""
    limits, places = (
        RateLimits(Quota(max_concurrent_requests=20, max_concurrent_streams=20)),
        contextlib.ExitStack(),
    )

    def held_by(callers: Iterable[Caller]) -> tuple[int, str]:
        """Return how many slots these callers get together, and the last refusal."""
        count, refusal = 0, ""
        for caller in callers:
            with contextlib.suppress(Problem):
                while True:
                    try:
                        with contextlib.ExitStack() as both:
                            both.enter_context(limits.slot(caller, stream=stream))
                            both.enter_context(limits.serve(stream=stream))
                            places.push(both.pop_all())
                    except Problem as problem:
                        refusal = problem.detail
                        raise
                    count += 1
        return count, refusal

    def login(number: int) -> Caller:
        return Caller("team", Role.READ, login=str(number), project="a")

    with places:
        assert held_by([login(0)]) == (
            10,
            f"10 {_WHAT[stream]} for the same login; wait until one of them has ended",
        )
        held, refusal = held_by(login(number) for number in range(8))
        assert (held, "20" in refusal, "for the same token" in refusal) == (10, True, True)
        most = (STREAMS_MAX if stream else REQUESTS_MAX) // 2
        held, refusal = held_by(
            Caller(str(number), Role.READ, project="a") for number in range(most)
        )
        assert (held, "for the same project" in refusal) == (most - 20, True)
        assert held_by([Caller("other", Role.READ, project="b")])[0] == 20
        held, refusal = held_by(
            Caller(f"run {number}", None, RunRef(number, "u")) for number in range(most)
        )
        assert (held, "try again in a moment" in refusal) == (most - 20, True), (
            "now the process is full"
        )
    assert not limits._open[stream].held


@pytest.mark.parametrize(("stream", "most"), [(False, REQUESTS_MAX), (True, STREAMS_MAX)])
def test_the_process_has_a_total_even_when_it_is_open(stream: bool, most: int) -> None:
    limits = RateLimits(None)
    held, refused = _filled(lambda: limits.serve(stream=stream))
    assert len(held) == most
    assert (refused.status, refused.code) == (503, "overloaded")
    assert refused.headers["Retry-After"]
    held[0].__exit__(None, None, None)
    with limits.serve(stream=stream):
        pass


# --- through the entry point
# -----------------------------------------------------------------------------


class Tight:
    """A gateway with a small quota, and headers for one caller of each role."""

    def __init__(self, harness: Harness, folder: Path, quota: Quota) -> None:
        keys = Keys(folder)
        self.headers = {role: keys.headers(role) for role in keys.tokens}
        self.app = harness.new_app(entrance=keys.entrance(task_key=None, quota=quota))


@pytest.fixture
def tight(harness: Harness, tmp_path: Path) -> Tight:
    return Tight(
        harness,
        tmp_path,
        Quota(
            max_reads_per_s=0.001,
            max_writes_per_s=0.001,
            max_concurrent_requests=3,
            max_concurrent_streams=2,
        ),
    )


def test_each_operation_without_a_role_has_a_rate(
    tight: Tight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter applies to every new operation, by its own name.

    ``test_oidc.py`` tests the issuer's routes.
    """
    counted: list[tuple[Any, ...]] = []
    monkeypatch.setattr(RateLimits, "spend_freely", lambda _, *asked: counted.append(asked))
    with TestClient(tight.app, base_url=BASE) as api:
        for route in iter_route_contexts(tight.app.routes):
            name = getattr(route, "operation_id", None) or route.name
            if ACCESS[name].role is None:
                origin = {"Origin": BASE}
                api.request(
                    next(iter(route.methods)), route.path, headers=origin, follow_redirects=False
                )
                assert counted.pop()[1:] == (name, ACCESS[name].per_s)
    assert counted == []


def test_the_next_request_over_the_rate_is_429_and_changes_nothing(
    harness: Harness, tight: Tight
) -> None:
    with harness.client(tight.app) as api:
        first, second = (
            api.post("/v1/runs", json={"crawler": "plain"}, headers=tight.headers["operate"])
            for _ in range(2)
        )
        assert first.status_code == 202
        assert (second.status_code, second.json()["code"]) == (429, "rate_limited")
        assert int(second.headers["retry-after"]) > 1
        assert len(harness.store.runs.list_runs()) == 1
        # Reads continue, other callers continue, and health checks need no slot.
        assert api.get("/v1/runs", headers=tight.headers["operate"]).status_code == 200
        assert (
            api.post(
                "/v1/runs", json={"crawler": "plain"}, headers=tight.headers["admin"]
            ).status_code
            == 202
        )
        for _ in range(5):
            assert api.get("/healthz", headers=tight.headers["operate"]).status_code == 200


def test_the_101st_start_at_once_is_refused(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_clock = functools.partial(RateLimits, clock=lambda: 0.0)  # no tokens are added
    monkeypatch.setattr(gateway_app, "RateLimits", stopped_clock)
    tight = Tight(harness, tmp_path, Quota(max_writes_per_s=20))
    with harness.client(tight.app) as api:
        # A stop of a missing run is the cheapest command.
        codes = [
            api.post("/v1/runs/1/stop", headers=tight.headers["operate"]).status_code
            for _ in range(102)
        ]
    assert codes == [404] * 100 + [429] * 2


_WHAT = {False: "requests are being served", True: "streams are open"}


async def _call(
    app: Any,
    path: str,
    headers: dict[str, str],
    hold: asyncio.Event | None = None,
    begun: asyncio.Event | None = None,
) -> list[Any]:
    """Send one GET whose client disconnects when ``hold`` is set.

    Return what it received. ``begun`` is set by the first data.
    """
    sent: list[Any] = []
    asked = False

    async def receive() -> Any:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        if hold is not None:
            await hold.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if begun is not None:
            begun.set()

    path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "scheme": "http", "root_path": "",
        "headers": [(b"host", b"x"), *((k.lower().encode(), v.encode()) for k, v in headers.items())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return sent


async def test_open_streams_take_no_places_of_requests(harness: Harness, tmp_path: Path) -> None:
    roomy = Tight(harness, tmp_path, Quota(max_concurrent_requests=1, max_concurrent_streams=2))
    leave = asyncio.Event()
    async with roomy.app.router.lifespan_context(roomy.app):
        begun = [asyncio.Event() for _ in range(2)]
        streams = [
            asyncio.create_task(_call(roomy.app, "/v1/events", roomy.headers["read"], leave, one))
            for one in begun
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(*(one.wait() for one in begun))
        assert not any(task.done() for task in streams)
        third = await _call(roomy.app, "/v1/events", roomy.headers["read"])
        assert third[0]["status"] == 429
        assert (await _call(roomy.app, "/v1/runs", roomy.headers["read"]))[0]["status"] == 200
        leave.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*streams)
        ended = await _call(roomy.app, "/v1/runs", roomy.headers["read"])
        assert ended[0]["status"] == 200


async def test_logins_of_one_token_share_its_streams(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    gateway = harness.gateway(entrance=keys.entrance(quota=Quota(max_concurrent_streams=4)))
    assert gateway.logins is not None
    app, leave = gateway_app.create_app(gateway), asyncio.Event()
    async with app.router.lifespan_context(app), asyncio.TaskGroup() as streams:
        begun: list[asyncio.Event] = []
        refused: list[int] = []

        async def open_stream(cookie: str) -> None:
            begun.append(asyncio.Event())
            sent = await _call(
                app, "/v1/events", {"Cookie": f"__Host-crawl_login={cookie}"}, leave, begun[-1]
            )
            if sent[0]["status"] != 200:
                refused.append(sent[0]["status"])

        for _ in range(8):
            found = gateway.logins.begin(keys.tokens["read"], harness.clock())
            assert found is not None
            for _ in range(3):
                streams.create_task(open_stream(found[1]))
        async with asyncio.timeout(60):
            while len(begun) < 24:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await asyncio.gather(*(event.wait() for event in begun))
        assert refused == [429] * 20
        leave.set()


def test_what_counts_as_a_stream() -> None:
    for path, is_stream in (
        ("/v1/events", True),
        ("/v1/runs/1/logs?follow=true", True),
        ("/v1/runs/1/logs?tail=5&follow=1", True),
        ("/v1/runs/1/logs?follow=false", False),
        ("/v1/runs/1/logs", False),
        ("/v1/runs", False),
        ("/v1/runs/1?wait=60", True),
        ("/v1/runs/1?wait=0", False),
        ("/v1/runs?wait=60", False),
    ):
        name = {"events": "streamEvents", "logs": "getLog", "1": "getRun", "runs": "listRuns"}
        where, _, query = path.partition("?")
        access = ACCESS[name[where.rpartition("/")[2]]]
        assert _is_stream(access, {"query_string": query.encode()}) is is_stream, path


def _api(
    harness: Harness, entrance: Entrance, monotonic: Callable[[], float] = lambda: 0.0
) -> AuthenticationMiddleware:
    async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

    limits = RateLimits(QUOTA, clock=monotonic)
    return AuthenticationMiddleware(
        nothing, operations=Operations(harness.app), entrance=entrance, limits=limits
    )


@pytest.mark.parametrize("begun", [True, False])
async def test_a_token_that_is_taken_back_ends_what_it_opened(
    harness: Harness, tmp_path: Path, begun: bool
) -> None:
    """Even if nothing is sent: a silent stream, the log of a crawler that prints nothing, a
    response that waits.
    """
    token, lines = new_token("viewer", "read")
    _, others = new_token("other", "read")
    file = tmp_path / "tokens.toml"
    file.write_text(lines)
    api = _api(harness, Entrance(TokenFile(file), check=named_hosts(())))
    ended = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal ended
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        file.write_text(others)
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    api.app = app
    async with asyncio.timeout(30):
        if begun:
            sent = await _call(api, "/v1/events", {"Authorization": f"Bearer {token}"})
            assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        else:
            with pytest.raises(Problem, match="the token is unknown"):
                await _call(api, "/v1/runs", {"Authorization": f"Bearer {token}"})
    assert ended
    assert not api.limits._open[True].held
    assert CHECK_S + FRESH_S < 1, "docs/security.md promises it within a second"


# --- bodies ---------------------------------------------------------------------------------------


def test_only_lists_of_tasks_may_be_large(harness: Harness, client: TestClient) -> None:
    for method, path, name in (
        ("POST", "/v1/runs", "startRun"),
        ("POST", "/v1/runs/1/tasks", "addTasks"),
        ("POST", "/v1/runs/1/stop", "stopRun"),
        ("POST", "/v1/runs/1/resume", "resumeRun"),
        ("GET", "/v1/runs", "listRuns"),
    ):
        most = ACCESS[name].body_max
        assert most == (2 if "Tasks" in name or "start" in name else 1) * 1024 * 1024
        json = {"content-type": "application/json"}
        over = client.request(method, path, content=b" " * (most + 1), headers=json)
        assert (over.status_code, over.json()["code"]) == (413, "too_large")
        within = client.request(method, path, content=b" " * most, headers=json)
        assert within.status_code in (200, 400), within.text


async def test_large_bodies_together_are_bounded_and_their_room_comes_back() -> None:
    served = refused = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal served
        served += 1
        await go.wait()

    go = asyncio.Event()
    bodies = BodyLimit(app, limit=lambda _: 100, held_max=250)

    async def one() -> str:
        nonlocal refused

        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * 100, "more_body": False}

        async def send(message: Any) -> None: ...

        try:
            await bodies({"type": "http", "headers": []}, receive, send)
        except Problem as problem:
            refused += 1
            return problem.code
        return "served"

    tasks = [asyncio.create_task(one()) for _ in range(4)]
    async with asyncio.timeout(60):
        while served + refused < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
    go.set()
    assert sorted(await asyncio.gather(*tasks)) == ["overloaded", "overloaded", "served", "served"]
    assert served == 2
    assert not bodies._held.held
    assert await one() == "served"


async def test_large_bodies_of_one_project_leave_room_for_another() -> None:
    go, served, refused = asyncio.Event(), list[str](), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["project"])
        await go.wait()

    bodies = BodyLimit(app, limit=lambda _: 100, held_max=400)

    async def post(project: str) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * 100, "more_body": False}

        async def send(message: Any) -> None: ...

        with limited(project):
            try:
                await bodies({"type": "http", "headers": [], "project": project}, receive, send)
            except Problem:
                refused.append(project)

    tasks = [asyncio.create_task(post(project)) for project in "aaaabb"]
    async with asyncio.timeout(60):
        while len(served) + len(refused) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*tasks)
    assert (sorted(served), refused) == (["a", "a", "b", "b"], ["a", "a"])
    assert not bodies._held.held


async def test_a_body_that_does_not_come_is_408_and_holds_nothing() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("not complete")

    first = True

    async def receive() -> Any:
        nonlocal first
        if not first:
            await asyncio.sleep(60)
        first = False
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None: ...

    bodies = BodyLimit(app, limit=lambda _: 100, timeout_s=0.05)
    with pytest.raises(Problem) as refused:
        await bodies({"type": "http", "headers": []}, receive, send)
    assert (refused.value.status, refused.value.code) == (408, "too_slow")
    assert not bodies._held.held

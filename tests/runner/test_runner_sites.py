"""Scrapy crawls that lease their requests, with a gateway whose answers the test sets."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import crawler_lifecycle.runner
from crawler_lifecycle.features.sites.domain.lanes import ASK_RANGE_S
from crawler_lifecycle.features.sites.gateway.leases import LeaseDemands
from crawler_lifecycle.web.problems import Problem
from tests.runner.lease_gateway import LeaseGateway
from tests.runner.runner_fixture import wait_until
from tests.runner.scrapy_project import ScrapyFixture

sys.path.append(str(Path(crawler_lifecycle.runner.__file__).parent / "inject"))
import crawl_runner_leases  # type: ignore[import-not-found]
from crawl_runner_leases import SiteLeases
from crawl_runner_retry_after import response_wait
from crawl_runner_sites import _proxy_of, _Wait  # type: ignore[import-not-found]

pytestmark = pytest.mark.processes


class Desk(ThreadingHTTPServer):
    """A gateway that gives the same answer about each host."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.refuse = lambda asked: False
        """Says which calls get 422."""
        self.body: str | None = None
        """The answer to all calls, if it is not that of a gateway."""
        self.closed_s = 0.0
        self.free = True
        self.asked: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        self.connections = 0
        self.numbers: list[str] = []
        """The number of each call."""
        self.loses = False
        """True if connections break before the answer."""
        self.closes = False
        """True if it closes connections after an answer, without saying so."""

    @property
    def variables(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server_port}/leases"
        return {"CRAWL_LEASES_URL": url, "CRAWL_LEASES_TOKEN": "t"}


class _Handler(BaseHTTPRequestHandler):
    server: Desk
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_POST(self) -> None:
        desk = self.server
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "sites" not in call:
            self.send_error(404)
            return
        asked = call["sites"]
        desk.asked.append(asked)
        desk.paths.add(self.path)
        desk.numbers.append(self.path.rpartition("=")[2])
        if desk.loses:
            self.close_connection = True
            return
        answer = {
            "site": "shop.example",
            "free": desk.free,
            "exclusive": True,
            "probe": False,
            "closed_s": desk.closed_s,
            "ask_s": 60.0 if desk.free else 0.5,
            "lanes": [],
        }
        text = json.dumps({"sites": dict.fromkeys(asked, answer)})
        body = (desk.body or text).encode()
        self.send_response(422 if desk.refuse(asked) else desk.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.close_connection = desk.closes
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def desk() -> Iterator[Desk]:
    server = Desk()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("reactor", ["asyncioreactor.AsyncioSelector", "selectreactor.Select"])
def test_a_crawl_that_waits_for_a_closed_site_stops_and_resumes(
    scrapy_fixture: ScrapyFixture, desk: Desk, reactor: str
) -> None:
    """The next attempt sends the requests that waited."""
    desk.free = False
    desk.closed_s = 3600.0
    settings = json.dumps({"TWISTED_REACTOR": f"twisted.internet.{reactor}Reactor"})
    variables = {**desk.variables, "CRAWL_SETTINGS": settings}
    process = scrapy_fixture.start_spider("pages", {"n": "20"}, **variables)
    wait_until(lambda: desk.asked)
    wait_until(lambda: desk.asked[-1]["127.0.0.1"]["wanted"] > 1)
    process.send_signal(signal.SIGTERM)
    scrapy_fixture.finish(process, 20)
    assert scrapy_fixture.summary()["finish_reason"] == "shutdown"
    assert scrapy_fixture.summary()["resumable"]
    assert not scrapy_fixture.site.paths
    desk.free = True
    desk.closed_s = 0.0
    assert (
        scrapy_fixture.crawl("pages", {"n": "20"}, CRAWL_RESUME="1", CRAWL_ATTEMPT="2", **variables)
        == 0
    )
    assert sorted(scrapy_fixture.site.paths) == sorted(f"/{page}" for page in range(20))
    assert desk.asked[-1]["127.0.0.1"]["statuses"] == {"200": 20}


NO_PATH = bytes(Problem(404, "not_found", "no such resource").response().body).decode()
NO_TASK = bytes(Problem(404, "task_not_found", "no such task").response().body).decode()


@pytest.mark.parametrize(("bans", "reported"), [([], set()), ([200], {429})])
def test_a_project_says_which_statuses_close_a_site(
    scrapy_fixture: ScrapyFixture, desk: Desk, bans: list[int], reported: set[int]
) -> None:
    """A gateway expects no success as the status of a refusal, so it is reported as 429."""
    settings = json.dumps({"SITES_BAN_STATUSES": bans})
    variables = {**desk.variables, "CRAWL_SETTINGS": settings}
    assert scrapy_fixture.crawl("pages", {}, **variables) == 0
    blocks = [asked["127.0.0.1"].get("block") for asked in desk.asked]
    assert {block["status"] for block in blocks if block} == reported


@pytest.mark.parametrize("status", [404, 422])
def test_a_gateway_that_knows_no_leases_delays_nothing(
    scrapy_fixture: ScrapyFixture, desk: Desk, status: int
) -> None:
    desk.status = status
    desk.body = NO_PATH
    assert scrapy_fixture.crawl("pages", {}, **desk.variables) == 0
    assert len(scrapy_fixture.site.paths) == 5


@pytest.fixture
def leases(desk: Desk) -> Iterator[Any]:
    made = SiteLeases(desk.variables["CRAWL_LEASES_URL"], "t")
    yield made
    made.close()


def ask(leases: Any, desk: Desk, host: str) -> None:
    """Begin a request, and wait until the gateway has answered."""
    before = len(desk.asked)
    leases.begin(host, lambda lane, latest: None)
    wait_until(lambda: len(desk.asked) > before and leases._sites[host].ask_at > 0)


def test_a_refused_report_is_lost_and_its_site_keeps_its_limits(
    leases: Any, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """A host without a bad report is asked about as before."""
    desk.free = False
    desk.refuse = lambda asked: "statuses" in asked.get("a.example", {})
    for host in ("a.example", "b.example"):
        ask(leases, desk, host)
    for _ in range(2):
        for host in ("a.example", "b.example"):
            leases.end(host, None, 200)
        wait_until(lambda: not any(leases._sites[host].statuses for host in leases._sites))
    wait_until(lambda: all(site.call_max > 1 for site in leases._sites.values()), 20)
    assert not leases.is_free("a.example")
    assert not leases.is_free("b.example")
    assert {"wanted": 1, "kept": []} in [asked.get("a.example") for asked in desk.asked[2:]]
    assert any(asked.get("b.example", {}).get("statuses") for asked in desk.asked)
    assert caplog.text.count("it is lost") == 1


def test_the_last_reports_of_all_hosts_are_sent(leases: Any, desk: Desk) -> None:
    """The gateway accepts a hundred in one call, and none with a bad one."""
    accepted: dict[str, Any] = {}

    def refuse(asked: dict[str, Any]) -> bool:
        bad = len(asked) > 100 or "shop..example" in asked
        accepted.update({} if bad else asked)
        return bad

    desk.refuse = refuse
    for host in ("shop..example", *(f"shop-{number}.example" for number in range(249))):
        leases.end(host, None, 200)
    leases.end("shop-249.example", None, 429)
    leases.close()
    assert "shop-249.example" in desk.asked[0], "a closed site is reported first"
    assert accepted.keys() == {f"shop-{number}.example" for number in range(250)}


def test_a_refused_host_delays_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one of 40 busy ones, in simulated time. Each call takes 0.2 seconds."""
    now = 1000.0
    heard: dict[str, list[float]] = defaultdict(list)
    leases = SiteLeases("http://127.0.0.1:9/leases", "t")
    leases.close()  # the test asks
    monkeypatch.setattr(crawl_runner_leases, "time", SimpleNamespace(monotonic=lambda: now))
    crawl_runner_leases._CHANCE.seed(1)

    def call(connection: Any, asked: dict[str, Any], number: int) -> tuple[int, Any]:
        nonlocal now
        now += 0.2
        if "shop..example" in asked:
            return 422, {}
        for host in asked:
            heard[host].append(now)
        lane = {"lane": 0, "first_s": 0.0, "every_s": 0.0, "until_s": 6.0, "leaves": False}
        answer = {"free": False, "exclusive": True, "probe": False, "closed_s": 0.0, "ask_s": 3.5}
        answer |= {"lanes": [lane]}
        return 200, {host: {**answer, "site": host} for host in asked}

    leases._call = call
    valid = {f"shop-{number}.example" for number in range(40)}
    for host in (*valid, "shop..example"):
        leases.begin(host, lambda lane, latest: None)
    free_at = math.inf
    while now < 1060:
        asked = leases._due(now)
        if asked:
            leases._ask(asked)
        now += 0.01
        if leases.is_free("shop..example"):
            free_at = min(free_at, now)
    assert free_at < 1005
    assert heard.keys() == valid
    for times in heard.values():
        assert max(later - sooner for sooner, later in pairwise([1000.0, *times, now])) < 5


@pytest.mark.parametrize("free", [False, True])
def test_a_refused_request_pauses_all_hosts_of_its_site(free: bool) -> None:
    """The process has lanes for each of them. Another site is not affected."""
    sites = {"a.shop.example": "*.shop.example", "b.shop.example": "*.shop.example", "x.y": "x.y"}
    leases = SiteLeases("http://127.0.0.1:9/leases", "t")
    leases.close()  # the test asks
    lane = {"lane": 0, "first_s": 0.0, "every_s": 0.0, "until_s": 30.0, "leaves": False}
    answer = {"free": free, "exclusive": False, "probe": False, "closed_s": 0.0, "ask_s": 20.0}
    answer |= {"lanes": [] if free else [lane]}
    leases._call = lambda connection, asked, number: (
        200,
        {host: {**answer, "site": sites[host]} for host in asked},
    )
    begun: list[str] = []

    def begin_all() -> None:
        for host in sites:
            leases.begin(host, lambda lane, latest, host=host: begun.append(host))
        leases.begin_due()

    begin_all()
    leases._ask(leases._due(time.monotonic() + 1.0))
    leases.begin_due()
    assert sorted(begun) == [*sites]
    leases.end("a.shop.example", None if free else 0, 429, 20.0)
    if not free:
        begin_all()
        assert begun[3:] == ["x.y"]
    asked = leases._due(time.monotonic())
    assert asked.pop("a.shop.example")["block"] == {"status": 429, "retry_after_s": 20.0}
    assert asked.pop("b.shop.example")["kept"] == []
    assert not any("block" in question for question in asked.values())


def test_hosts_without_a_known_site_are_no_site_together() -> None:
    leases = SiteLeases("http://127.0.0.1:9/leases", "t")
    leases.close()  # the test asks
    for host in ("a.example", "b.example"):
        leases.begin(host, lambda lane, latest: None)
        leases._sites[host].ask_at = math.inf  # the gateway is being asked
    leases.end("a.example", None, 429, 20.0)
    assert leases._due(time.monotonic()).keys() == {"a.example"}


@pytest.mark.parametrize("status", [404, 422])
def test_a_site_whose_limits_are_known_is_never_free_after_an_error(
    leases: Any, desk: Desk, status: int
) -> None:
    """After a 404, no new host is asked about before the gateway answers again."""
    desk.free = False
    ask(leases, desk, "a.example")
    desk.status = status
    desk.body = NO_PATH
    leases.end("a.example", None, 429)
    wait_until(lambda: len(desk.asked) > 3)
    leases.begin("b.example", lambda lane, latest: None)
    if status == 422:
        wait_until(lambda: any("b.example" in asked for asked in desk.asked[-2:]))
        wait_until(lambda: leases._sites["b.example"].ask_at > 0)
    else:
        calls = len(desk.asked)
        wait_until(lambda: len(desk.asked) > calls + 1)
        assert desk.numbers[-1] == desk.numbers[-2], "the call is repeated"
    assert not leases.is_free("a.example")
    assert leases.is_free("b.example") == (status == 422), "the gateway does not know this host"


def test_a_task_stays_at_one_gateway_while_it_waits(
    leases: Any, desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each gateway has its own line, and a new connection may lead to another one."""
    ahead = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead)
    monkeypatch.setattr(crawl_runner_leases, "time", clock)
    ask(leases, desk, "a.example")
    ahead += ASK_RANGE_S[1]
    desk.closes = True
    ask(leases, desk, "b.example")
    assert desk.connections == 1
    ahead += ASK_RANGE_S[1]
    ask(leases, desk, "c.example")
    wait_until(lambda: leases.is_free("c.example"))
    assert desk.connections == 2
    assert "No leases" not in caplog.text


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("body", ["null", "[]", "{}", '{"sites": 7}', "<html>", NO_TASK])
def test_an_answer_of_another_server_is_no_lease(
    leases: Any, desk: Desk, caplog: pytest.LogCaptureFixture, status: int, body: str
) -> None:
    """An ingress answers 404 while its gateway starts."""
    desk.status = status
    desk.body = body
    leases.begin("a.example", lambda lane, latest: None)
    wait_until(lambda: f"with status {status}); requests" in caplog.text)
    assert not leases.is_free("a.example")
    desk.status = 200
    desk.body = None
    wait_until(lambda: leases.is_free("a.example"))


def test_a_gateway_that_knows_no_leases_is_soon_asked_again(leases: Any, desk: Desk) -> None:
    """A new version may have replaced it."""
    desk.status = 404
    desk.body = NO_PATH
    leases.begin("a.example", lambda lane, latest: None)
    wait_until(lambda: leases.is_free("a.example"))
    desk.free = False
    desk.status = 200
    desk.body = None
    wait_until(lambda: not leases.is_free("a.example"), 10)


def test_a_call_whose_answer_is_lost_is_repeated_with_its_number(leases: Any, desk: Desk) -> None:
    """The gateway may have counted its reports. What comes later has another number."""
    desk.free = False
    ask(leases, desk, "a.example")
    desk.loses = True
    leases.end("a.example", None, 429)
    wait_until(lambda: len(desk.asked) > 3)
    leases.end("a.example", None, 200)
    desk.loses = False
    wait_until(lambda: any("passed" in asked["a.example"] for asked in desk.asked), 10)
    reports = {
        number: json.dumps(asked["a.example"].get("statuses", {}))
        for number, asked in zip(desk.numbers, desk.asked, strict=True)
    }
    assert sorted(set(reports.values())) == ['{"200": 1}', '{"429": 1}', "{}"]
    lost = [number for number, text in reports.items() if "429" in text]
    assert len(lost) == 1
    assert desk.numbers.count(lost[0]) > 2


def test_each_process_of_a_task_names_itself(desk: Desk) -> None:
    """In the query, because older gateways do not accept new fields."""
    for _ in range(2):
        leases = SiteLeases(desk.variables["CRAWL_LEASES_URL"], "t")
        ask(leases, desk, "a.example")
        leases.end("a.example", None, 200)
        leases.close()
    assert len(desk.asked) == 4
    calls = [re.fullmatch(r"/leases\?process=([0-9a-f]{8})&call=\d+", path) for path in desk.paths]
    assert len({call[1] for call in calls if call}) == 2
    assert len(calls) == 4


STATUSES = [None, -1, 0, 99, 100, 200, 302, 429, 503, 599, 600, 999]
PROXIES = ["пр.example:3128", "a b@c", "x" * 400, "[::1]:3128", "", "\ud800", None]


@pytest.mark.parametrize("retry_after", [None, -1.0, 0.0, 1e12, math.inf, math.nan])
def test_the_gateway_accepts_every_report(retry_after: float | None) -> None:
    """Of all statuses, of those that close a site, and of all proxies."""
    leases = SiteLeases("http://127.0.0.1:9/leases", "t", bans=STATUSES[1:])
    leases.close()  # the test asks
    hosts = ["shop.example", "shop.example:8443", "::1", "[::1]:80", "127.0.0.1", "a" * 200]
    for host in hosts:
        for status in STATUSES:
            for proxy in PROXIES:
                leases.end(host, None, status, retry_after, proxy)
        leases._sites[host].statuses["200"] += 5_000_000
        leases._sites[host].refused = 5_000_000
    asked = {host: leases._sites[host].question(0.0) for host in hosts}
    demands = LeaseDemands.model_validate_json(json.dumps({"sites": asked}))
    demand = demands.sites["shop.example"]
    assert demand.block is not None
    assert demand.block.status == 429
    assert demand.statuses["error"] == 6 * len(PROXIES)
    assert len(demand.proxies) == len(PROXIES) - 1, "two of them are none"


NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("20", 20),
        (" 1.5 ", 1.5),
        ("1000000000", 86_400),
        ("-5", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        (format_datetime(NOW + timedelta(seconds=30), usegmt=True), 30),
        ("Fri, 20 Nov 2026 02:00:30 +0200", 30),
        (format_datetime(NOW - timedelta(days=1)), 0),
        ("Fri, 99 Nov 2026 25:00:30 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str, seconds: float | None) -> None:
    date = format_datetime(NOW, usegmt=True)
    assert response_wait(value, date) == seconds


def test_one_call_renews_the_lanes_of_several_hosts() -> None:
    with LeaseGateway(connections=2) as gateway:
        variables = gateway.environment()
        leases = SiteLeases(variables["CRAWL_LEASES_URL"], variables["CRAWL_LEASES_TOKEN"])
        for host in ("a.example", "b.example"):
            begun = threading.Event()
            leases.begin(host, lambda lane, latest, begun=begun: begun.set())
            assert begun.wait(5)
        leases.close()
        wait_until(lambda: leases._connection is None, 5)
        gateway.shutdown()
    assert set(gateway.questions[0]) == {"a.example"}
    assert set(gateway.questions[1]) == {"a.example", "b.example"}
    assert gateway.questions[1]["a.example"]["kept"]


def test_a_closing_pauses_the_requests_of_its_site_before_the_next_renewal() -> None:
    with LeaseGateway(connections=1) as gateway:
        variables = gateway.environment()
        leases = SiteLeases(variables["CRAWL_LEASES_URL"], variables["CRAWL_LEASES_TOKEN"])
        for host in ("a.example", "b.example"):
            begun = threading.Event()
            leases.begin(host, lambda lane, latest, begun=begun: begun.set())
            assert begun.wait(5)
            leases.end(host, 0, 200)
        gateway.closings.put(["a.example"])
        wait_until(lambda: gateway.closings.empty(), 5)
        closed_at = time.monotonic()
        wait_until(lambda: gateway.questions[-1].get("a.example", {}).get("kept") == [], 5)
        assert time.monotonic() - closed_at < 1.0
        assert gateway.questions[-1].get("b.example", {"kept": [0]})["kept"] == [0]
        leases.close()
        gateway.shutdown()


def test_requests_are_counted_by_proxy_after_the_first_one() -> None:
    leases = SiteLeases("http://127.0.0.1:9/leases", "t")
    leases.close()  # the test asks
    ends = [None, "p:1", None, *(f"p:{n}" for n in range(2, 40))]
    for proxy in ends:
        leases.end("shop.example", None, 200, None, proxy)
    question = leases._sites["shop.example"].question(0.0)
    assert question["statuses"] == {"200": 41}
    proxies = question["proxies"]
    assert (proxies["direct"], proxies["p:1"], proxies["others"]) == (
        {"200": 1},
        {"200": 1},
        {"200": 20},
    )


@pytest.mark.parametrize(
    ("proxy", "name"),
    [
        ("http://me:pw@P.example:3128/", "p.example:3128"),
        ("p.example:3128", "p.example:3128"),
        ("", None),
        (7, None),
    ],
)
def test_a_proxy_is_named_without_its_password(proxy: Any, name: str | None) -> None:
    assert _proxy_of(SimpleNamespace(meta={"proxy": proxy})) == name


def test_a_request_that_scrapy_cancelled_can_still_end() -> None:
    """Its cancellation is not done yet when the crawl ends, or when its turn comes."""
    loop = asyncio.new_event_loop()
    wait = _Wait("a.example", loop)
    wait.turn.cancel()
    wait.fail(ValueError("the crawl ended"))
    wait.begin(0, 1.0)
    assert wait.turn.cancelled()
    loop.close()

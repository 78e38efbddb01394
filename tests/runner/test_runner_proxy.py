"""The forward proxy that keeps the limits of sites, with real clients."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.runner.lease_gateway import JournalSite, LeaseGateway
from tests.runner.runner_fixture import RUNNER, RunnerFixture, wait_until
from tests.support.certificates import certificate

SCRIPT = str(RUNNER / "inject" / "crawl_runner_proxy.py")
#: A crawler without support for leases.
FETCH = """
import os, sys, urllib.request
print(os.getpid(), urllib.request.urlopen(sys.argv[1]).status, flush=True)
sys.exit(7)
"""


@contextmanager
def proxy(gateway: LeaseGateway, **env: str) -> Iterator[str]:
    """Run the proxy without a command, and return its address."""
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    process = subprocess.Popen(
        [sys.executable, SCRIPT],
        stdout=subprocess.PIPE,
        env={**clean, **gateway.environment(), **env},
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        assert process.wait(10) == 0
        process.stdout.close()


@pytest.fixture(scope="module")
def free() -> Iterator[str]:
    """Return a proxy for sites without limits."""
    with proxy(LeaseGateway()) as address:
        yield address


@pytest.fixture
def site() -> JournalSite:
    return JournalSite()


def curl(address: str, *words: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", "--noproxy", "", "-x", address, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_limits_hold_for_clients_that_know_nothing_of_them(site: JournalSite) -> None:
    with (
        proxy(LeaseGateway(connections=3, requests_per_s=10)) as address,
        httpx.Client(proxy=address, timeout=30) as client,
        ThreadPoolExecutor(12) as pool,
    ):
        begun = time.monotonic()
        answers = list(pool.map(lambda _: client.get(site.url).status_code, range(30)))
    assert answers == [200] * 30
    assert site.most_open <= 3
    assert site.most_in_a_second() <= 11
    assert time.monotonic() - begun < 6, "the limit is not used"


def test_tunnels_hold_a_lane_and_return_it_when_they_are_idle(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusted = certificate(tmp_path / "site.pem", "localhost")
    context.load_cert_chain(trusted)
    site = JournalSite(tls=context)
    url = f"https://localhost:{site.server_address[1]}/"
    trust = ssl.create_default_context(cafile=str(trusted))
    with (
        proxy(LeaseGateway(connections=2)) as address,
        httpx.Client(proxy=address, verify=trust, timeout=30) as client,
        ThreadPoolExecutor(6) as pool,
    ):
        first = [client.get(url).status_code for _ in range(5)]
        second = list(pool.map(lambda _: client.get(url).status_code, range(12)))
        # The client keeps its connections; curl needs one of their two lanes.
        assert "pagepage" in curl(address, "--cacert", str(trusted), url)
    assert first + second == [200] * 17
    assert site.most_open <= 2


def test_a_refusal_of_the_site_is_reported_to_the_gateway(site: JournalSite) -> None:
    gateway = LeaseGateway(connections=1)
    with proxy(gateway) as address:
        assert "later" in curl(address, f"{site.url}busy")
        wait_until(lambda: any("block" in q.get("127.0.0.1", {}) for q in gateway.questions), 10)
    blocks = [q["127.0.0.1"]["block"] for q in gateway.questions if "block" in q["127.0.0.1"]]
    assert blocks == [{"status": 429, "retry_after_s": 20.0}]


def test_keep_alive_large_heads_and_bodies_pass(free: str, site: JournalSite) -> None:
    with httpx.Client(proxy=free, headers={"X-Large": "x" * 10_000}) as client:
        assert [client.get(f"{site.url}?a=b").text for _ in range(3)] == ["page" * 50] * 3
        assert client.post(site.url, content=b"x" * 3_000_000).text == "3000000"
    seen = {name.lower(): value for name, value in site.headers[-1].items()}
    assert len(seen["x-large"]) == 10_000
    assert seen["connection"] == "close"
    assert "proxy-authorization" not in seen
    assert "431" in curl(free, "-v", "-H", "X: " + "x" * 70_000, site.url)


def test_ipv6(free: str) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    url = JournalSite("::1").url
    assert "pagepage" in curl(free, url)
    assert "pagepage" in curl(free, "--proxytunnel", url)


def test_a_client_that_gives_up_frees_its_lane(site: JournalSite) -> None:
    gateway = LeaseGateway(connections=1)
    with proxy(gateway) as address:
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{site.url}never", proxy=address, timeout=0.5)
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{site.url}never", proxy=address, timeout=0.5)
        assert httpx.get(site.url, proxy=address, timeout=10).status_code == 200


@pytest.mark.parametrize(
    ("request_text", "status", "text"),
    [
        ("GET / HTTP/1.1\r\nHost: a\r\n", 400, "whole URL"),
        ("GET http://a b/ HTTP/1.1\r\n", 400, "first line"),
        ("GET http://a:99999/ HTTP/1.1\r\n", 400, "port"),
        ("GET http://a$b/ HTTP/1.1\r\n", 400, "is not a host"),
        ("CONNECT [::zz]:443 HTTP/1.1\r\n", 400, "host or port"),
        ("GET https://a/ HTTP/1.1\r\n", 400, "whole URL"),
        ("POST http://a/ HTTP/1.1\r\nContent-Length: -1\r\n", 400, "size of the body"),
        (
            "POST http://a/ HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            400,
            "size of the body",
        ),
        ("GET http://127.0.0.1:1/ HTTP/1.1\r\n", 502, "cannot connect to 127.0.0.1:1"),
        ("CONNECT 127.0.0.1:1 HTTP/1.1\r\n", 502, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_sent_gets_a_reason(
    free: str, request_text: str, status: int, text: str
) -> None:
    parts = urlsplit(free)
    user = httpx.BasicAuth(parts.username or "", parts.password or "")._auth_header
    answer = _raw(free, f"{request_text}Proxy-Authorization: {user}\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert text in answer


def test_others_on_the_machine_cannot_use_it(free: str, site: JournalSite) -> None:
    address = f"http://{urlsplit(free).hostname}:{urlsplit(free).port}"
    assert httpx.get(site.url, proxy=address).status_code == 407
    assert not site.began


def test_a_proxy_of_the_environment_is_used(free: str, site: JournalSite) -> None:
    with proxy(LeaseGateway(), http_proxy=free, https_proxy=free) as address:
        assert "pagepage" in curl(address, site.url)
        assert "pagepage" in curl(address, "--proxytunnel", site.url)
    with proxy(LeaseGateway(), http_proxy="http://127.0.0.1:1", no_proxy="127.0.0.1") as address:
        assert "pagepage" in curl(address, site.url)
        assert "Connect call failed" in curl(address, "http://site.example/")
    with proxy(LeaseGateway(), http_proxy="socks5://a", no_proxy="127.0.0.1") as address:
        assert "has to begin with http://" in curl(address, "http://site.example/")


def test_it_becomes_the_crawler(site: JournalSite) -> None:
    command = [sys.executable, SCRIPT, "--", sys.executable, "-c", FETCH, site.url]
    gateway = LeaseGateway(connections=1)
    env = {**os.environ, **gateway.environment(), "NO_PROXY": "127.0.0.1", "no_proxy": "*"}
    crawler = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    # The proxy has the same output, so this returns only when it has ended, too.
    output = crawler.communicate(timeout=20)[0]
    assert output.split() == [str(crawler.pid), "200"]
    assert crawler.returncode == 7
    assert any("127.0.0.1" in question for question in gateway.questions), "no host is left out"
    assert {name.lower() for name in site.headers[0]}.isdisjoint({"proxy-authorization"})


def test_the_runner_needs_no_crawlctl_for_it(fixture: RunnerFixture, site: JournalSite) -> None:
    gateway = LeaseGateway(connections=1)
    code = FETCH + "import crawl_runner_leases\n"
    words = ("crawlctl", "site", "proxy", "--", sys.executable, "-c", code, site.url)
    assert fixture.run("command", "--", *words, **gateway.environment()) == 7, fixture.output
    assert any("127.0.0.1" in question for question in gateway.questions)
    assert fixture.run("command", "--", *words) != 0
    assert b"CRAWL_LEASES_URL is not set" in fixture.output
    assert fixture.run("command", "--", *words[:4], **gateway.environment()) == 4
    assert b"no command is given" in fixture.output


def test_programs_can_import_what_asks_for_leases(fixture: RunnerFixture) -> None:
    words = (sys.executable, "-c", "import crawl_runner_leases")
    assert fixture.run("command", "--", *words, **LeaseGateway().environment()) == 0
    assert fixture.run("command", "--", *words) == 1, "it changes what others import"


def test_a_signal_reaches_the_crawler_alone(site: JournalSite) -> None:
    command = [sys.executable, SCRIPT, "--", "sleep", "60"]
    env = {**os.environ, **LeaseGateway().environment()}
    crawler = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    wait_until(lambda: Path(f"/proc/{crawler.pid}/comm").read_text() == "sleep\n", 10)
    crawler.send_signal(signal.SIGTERM)
    crawler.communicate(timeout=10)
    assert crawler.returncode == -signal.SIGTERM


def _raw(address: str, text: str) -> str:
    parts = urlsplit(address)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), 10) as connection:
        connection.sendall(text.encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def refused(*words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, SCRIPT, *words], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode not in (0, None)
    return done.stderr


def test_it_says_what_is_missing() -> None:
    assert "CRAWL_LEASES_URL is not set" in refused("--", "true")
    given = LeaseGateway().environment()
    assert "nothing-here cannot be executed" in refused("--", "nothing-here", **given)
    assert "--port: 99999 cannot be used" in refused("--port", "99999", **given)

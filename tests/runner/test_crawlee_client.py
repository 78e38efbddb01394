"""The client for Crawlee, without Crawlee: what it sends after a redirect.

``tests/dev/test_foreign_crawlers.py`` tests it with Crawlee.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import crawler_lifecycle.runner
from tests.runner.lease_gateway import LeaseGateway

INJECTED = Path(crawler_lifecycle.runner.__file__).parent / "inject"
SHOP = "http://shop.example/a"


class Sender:
    """In the place of Crawlee's client. It answers from a table of redirects."""

    made: list[Sender]

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.places: dict[str, tuple[int, str]] = {}
        self.is_clean = False
        Sender.made.append(self)

    async def send_request(self, url: str, **options: Any) -> Any:
        if url.startswith("http://127.0.0.1:9/"):
            raise OSError
        self.sent.append((url, options))
        status, place = self.places.get(url, (200, ""))
        return SimpleNamespace(status_code=status, headers={"location": place})

    @contextlib.asynccontextmanager
    async def stream(self, url: str, **options: Any) -> AsyncIterator[Any]:
        yield await self.send_request(url, **options)

    async def cleanup(self) -> None:
        self.is_clean = True


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, with a stand-in for Crawlee."""
    Sender.made = []
    crawlee = ModuleType("crawlee")
    clients = ModuleType("crawlee.http_clients")
    vars(crawlee).update(HttpHeaders=dict, http_clients=clients)
    vars(clients).update(HttpClient=object, HttpCrawlingResult=SimpleNamespace)
    vars(clients).update(ImpitHttpClient=Sender)
    monkeypatch.setitem(sys.modules, "crawlee", crawlee)
    monkeypatch.setitem(sys.modules, "crawlee.http_clients", clients)
    monkeypatch.delitem(sys.modules, "crawl_runner_crawlee", raising=False)
    monkeypatch.syspath_prepend(INJECTED)
    yield importlib.import_module("crawl_runner_crawlee")
    sys.modules.pop("crawl_runner_crawlee")


@pytest.mark.parametrize(
    ("status", "method", "place", "url", "sent"),
    [
        (302, "GET", "/b", "http://shop.example/b", "GET"),
        (301, "POST", "//www.shop.example/b", "http://www.shop.example/b", "GET"),
        (303, "PUT", "https://shop.example/b", "https://shop.example/b", "GET"),
        (303, "HEAD", "?page=2", "http://shop.example/a?page=2", "HEAD"),
        (307, "POST", "/b", "http://shop.example/b", "POST"),
        (308, "PUT", "/b", "http://shop.example/b", "PUT"),
        (302, "GET", "ftp://shop.example/b", None, ""),
        (302, "GET", "http://[", None, ""),
        (302, "GET", "", None, ""),
        (304, "GET", "/b", None, ""),
        (200, "GET", "/b", None, ""),
    ],
)
def test_a_redirect_is_followed_like_browsers_do(
    client: Any, status: int, method: str, place: str, url: str | None, sent: str
) -> None:
    """The site of a redirect gets no secrets of another one, and no body with another method."""
    headers = {"Cookie": "c", "Content-Type": "text/plain", "Accept": "x"}
    hop = client._Hop(SHOP, {"method": method, "payload": b"p", "headers": headers})
    after = hop.after(SimpleNamespace(status_code=status, headers={"location": place}))
    if url is None:
        assert after is None
        return
    kept = {"Accept"}
    if url.startswith("http://shop.example/"):
        kept.add("Cookie")
    if sent == method:
        kept.add("Content-Type")
    assert (after.url, after.options["method"], set(after.options["headers"])) == (url, sent, kept)
    assert after.options["payload"] == (b"p" if sent == method else None)


def test_without_leases_redirects_are_followed(client: Any) -> None:
    leased = client.LeasedHttpClient()
    (sender,) = Sender.made
    sender.places = {SHOP: (302, "/b"), "http://shop.example/b": (302, "/c")}
    request = SimpleNamespace(url=SHOP, method="GET", headers=None, payload=None, loaded_url=None)
    counted: list[int] = []
    statistics = SimpleNamespace(register_status_code=counted.append)
    result = asyncio.run(leased.crawl(request, statistics=statistics, session=None))
    assert result.http_response.status_code == 200
    assert (request.loaded_url, counted) == ("http://shop.example/c", [200])
    assert sender.options == {"follow_redirects": False, "http3": False}
    sender.places = {SHOP: (302, SHOP)}
    with pytest.raises(RuntimeError, match="more than 20 redirects"):
        asyncio.run(leased.send_request(SHOP))


def test_each_hop_takes_a_turn_and_its_connection_ends(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP/2 has no header for that, so a client of its own sends the request."""
    gateway = LeaseGateway(connections=1)
    for name, value in gateway.environment().items():
        monkeypatch.setenv(name, value)
    leased = client.LeasedHttpClient(timeout=timedelta(seconds=5))
    (sender,) = Sender.made
    sender.places = {SHOP: (302, "https://www.shop.example/b")}
    asyncio.run(leased.send_request(SHOP))
    leased._leases.close()
    gateway.shutdown()
    gateway.server_close()
    secure = Sender.made[1]
    sent = [*sender.sent, *secure.sent]
    assert [url for url, _ in sent] == [SHOP, "https://www.shop.example/b"]
    assert {options["headers"]["connection"] for _, options in sent} == {"close"}
    assert (sender.is_clean, secure.is_clean) == (False, True)
    assert gateway.statuses() == {"shop.example": {"302": 1}, "www.shop.example": {"200": 1}}

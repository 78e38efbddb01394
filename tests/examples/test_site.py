"""The demonstration site: complete, valid, without outside links, and misbehaving only where it
says so.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import deque
from html.parser import HTMLParser
from http.client import HTTPException
from urllib.parse import urljoin

import pytest
from starlette.testclient import TestClient

from examples.site import models
from examples.site.app import create_app
from examples.site.markup import clean, first_sentence, text_of
from examples.site.models import Catalogue
from examples.site.pages import RETIRED, UNSTEADY_EVERY, NoSuchPage, Pages, relative
from tests.examples.demo_site import ROOT, RunningSite, running_site

LOCATION = "{http://www.sitemaps.org/schemas/sitemap/0.9}loc"


class Strict(HTMLParser):
    """Collects the links of a page, and everything that is wrong with its nesting."""

    VOID = frozenset(("meta", "link", "br"))
    PHRASING = frozenset(
        ("p", "code", "b", "i", "em", "strong", "var", "a", "h1", "h2", "h3", "dt", "pre")
    )
    BLOCKS = frozenset(("p", "ul", "ol", "dl", "div", "table", "pre", "h1", "h2", "h3"))
    NO_TEXT = frozenset(("ul", "ol", "dl", "table", "thead", "tbody", "tr", "html", "head"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.mistakes: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.mistakes += [f"{tag} is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        parent = self._open[-1] if self._open else ""
        if tag in self.BLOCKS and self.PHRASING.intersection(self._open):
            self.mistakes.append(f"{tag} in {self._open}")
        if (tag == "li") != (parent in ("ul", "ol")) or (
            parent == "dl" and tag not in ("dt", "dd")
        ):
            self.mistakes.append(f"{tag} in {parent}")
        if tag == "a":
            self.links.append(dict(attrs)["href"] or "")
            if "a" in self._open:
                self.mistakes.append("a link in a link")
        if any(name == "style" or name.startswith("on") for name, _ in attrs):
            self.mistakes.append(f"inline style or script on {tag}")
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.mistakes.append(f"/{tag} in {self._open}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() and (not self._open or self._open[-1] in self.NO_TEXT):
            self.mistakes.append(f"text in {self._open[-1:]}: {data!r}")


def test_every_page_is_valid_and_every_link_leads_somewhere(site: RunningSite) -> None:
    waiting = deque(["/"])
    found: dict[str, int] = {"/": 0}
    while waiting:
        path = waiting.popleft()
        answer = site.get(path)
        found[path] = answer.status
        links = [answer.headers["location"]] if answer.status in (301, 302) else []
        if answer.text:
            page = Strict(answer.text)
            assert page.mistakes == [], path
            links += page.links
        for link in links:
            target = urljoin(site.url + path, link)
            assert target.startswith(site.url + "/"), f"{path} leads out of the site: {link}"
            if (known := target.removeprefix(site.url)) not in found:
                found[known] = 0
                waiting.append(known)

    broken = {path for path, status in found.items() if status == 404}
    unsteady = {path for path, status in found.items() if status == 503}
    redirects = {path for path, status in found.items() if status in (301, 302)}
    assert broken == {f"/retired/{name}" for name in RETIRED}
    assert unsteady == {f"/unsteady/{number}" for number in (7, 14, 21)}
    assert redirects == {
        f"/go/{old}{name}" for old in ("", "old/") for name in ("sqs", "dax", "polly", "glacier")
    }
    assert all(found[path] == 200 for path in found.keys() - broken - unsteady - redirects)
    assert sum(path.count("/") == 3 and path.startswith("/services/") for path in found) > 80


def test_all_pages_of_the_sitemaps_exist(site: RunningSite) -> None:
    sitemaps = [
        node.text or ""
        for node in ElementTree.fromstring(site.get("/sitemap.xml").text).iter(LOCATION)
    ]
    assert len(sitemaps) == 5  # one per service and one for the sections
    paths = [
        (node.text or "").removeprefix(site.url)
        for sitemap in sitemaps
        for node in ElementTree.fromstring(site.get(sitemap.removeprefix(site.url)).text).iter(
            LOCATION
        )
    ]
    assert len(paths) == len(set(paths)) > 100
    statuses = {
        path: site.get(path).status
        for path in paths
        if not path.startswith(("/unsteady/", "/slow/"))
    }
    assert {path for path, status in statuses.items() if status == 404} == {
        f"/retired/{name}" for name in RETIRED
    }
    assert {path for path, status in statuses.items() if status == 302} == {
        f"/go/{name}" for name in ("sqs", "dax", "polly", "glacier")
    }
    assert set(statuses.values()) == {200, 302, 404}


def test_robots_and_style(site: RunningSite) -> None:
    robots = site.get("/robots.txt")
    assert "Disallow: /private/" in robots.text
    assert f"Sitemap: {site.url}/sitemap.xml" in robots.text
    assert site.get("/private/").status == 200
    assert site.get("/style.css").headers["content-type"].startswith("text/css")


def test_unsteady_pages_are_down_at_every_odd_visit() -> None:
    with running_site("--services", "2") as fresh:
        seventh = [fresh.get(f"/unsteady/{UNSTEADY_EVERY}") for _ in range(4)]
        assert [answer.status for answer in seventh] == [503, 200, 503, 200]
        assert seventh[0].headers["retry-after"] == "1"
        assert [fresh.get("/unsteady/6").status for _ in range(2)] == [200, 200]


def test_slow_pages_take_their_time(site: RunningSite) -> None:
    began = time.monotonic()
    assert site.get("/slow/1").status == 200
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    "path",
    [
        "/services/no-such-service/",
        "/services/ec2/",  # installed, but not part of this site
        "/services/sqs/NoSuchOperation",
        "/services/..%2f..%2fetc/",
        "/services/sqs/?page=2",
        "/services/sqs/?page=0",
        "/services/sqs/?page=x",
        "/?page=99999999999999999999",
        "/categories/no-such-category/",
        "/go/no-such-service",
        "/unsteady/0",
        "/unsteady/007",
        "/slow/6",
        "/nowhere",
        "/%3Cscript%3E",
    ],
)
def test_what_does_not_exist_is_not_found(site: RunningSite, path: str) -> None:
    answer = site.get(path)
    assert answer.status == 404
    assert Strict(answer.text).mistakes == []
    assert "<script" not in answer.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_leaves_at_once_although_somebody_waits_for_a_slow_page(number: signal.Signals) -> None:
    with running_site("--services", "2", "--slow-seconds", "600") as site:

        def visit() -> None:
            with pytest.raises((OSError, HTTPException, AssertionError)):
                assert site.get("/slow/1").status == 200

        visitor = threading.Thread(target=visit)
        visitor.start()
        while site.requests().get("slow", 0) == 0:
            time.sleep(0.01)
        site.process.send_signal(number)
        assert site.process.wait(timeout=60) == 0
        visitor.join(timeout=60)
        assert not visitor.is_alive()


def test_a_port_in_use_is_an_error_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "examples.site", "--port", str(port)]
        result = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
    assert result.returncode == 1
    assert f"127.0.0.1:{port}" in result.stderr


def test_a_complete_site_starts_without_loading_a_model() -> None:
    models.load.cache_clear()
    create_app()
    assert models.load.cache_info().currsize == 0


def test_the_size_of_a_site_can_be_chosen() -> None:
    everything = Catalogue().services
    assert len(everything) > 300
    for size in (1, 12, 13, 100):
        chosen = Catalogue(size).services
        assert len(set(chosen)) == size
        assert chosen == Catalogue(size).services
        assert set(chosen) <= set(everything)
    assert Catalogue(10**6).services == everything
    # Twelve services give each of four letter ranges something to do.
    for first, last in ("af", "gl", "mr", "sz"):
        assert sum(first <= name[0] <= last for name in Catalogue(12).services) == 3


def test_long_lists_come_in_parts() -> None:
    pages = Pages(Catalogue(45))
    assert 'rel="next"' in pages.home(1)
    assert 'rel="next"' not in pages.home(2)
    assert pages.home(2).count("<code>") == 5
    for number in (0, 3):
        with pytest.raises(NoSuchPage):
            pages.home(number)


def test_titles_from_the_head_of_a_file_are_the_titles_of_the_models() -> None:
    for service_id in Catalogue(30).services:
        assert models.title(service_id) == models.load(service_id).title


@pytest.mark.parametrize(
    ("loose", "valid"),
    [
        ("plain", "<p>plain</p>"),
        ("<p>one<p>two", "<p>one</p><p>two</p>"),
        ("<p>a <b>b <i>c</b> d", "<p>a <b>b <i>c</i></b> d</p>"),
        ("<p>see <ul><li>x<li>y</ul> z", "<p>see </p><ul><li>x</li><li>y</li></ul><p> z</p>"),
        ("<li>alone", "<ul><li>alone</li></ul>"),
        ("<ul>text</ul>", "<ul><li>text</li></ul>"),
        ("<dl><dt>t<dd>d</dl>", "<dl><dt>t</dt><dd>d</dd></dl>"),
        ("<note><p>n</p></note>", '<div class="note"><p>n</p></div>'),
        ("<fullname>Title</fullname><p>x</p>", "<p>x</p>"),
        ("arn:<region>", "<p>arn:&lt;region&gt;</p>"),
        ("1 < 2 & 3", "<p>1 &lt; 2 &amp; 3</p>"),
        ("<script>alert(1)</script>ok", "<p>ok</p>"),
        ('<p onclick="x()" style="y">ok</p>', "<p>ok</p>"),
        ('<a href="javascript:x()">t</a>', "<p>t</p>"),
        ('<a href="https://example.org/">t</a>', "<p>t</p>"),
        ("<a>Known</a>", '<p><a href="Known&quot;">Known</a></p>'),
        (
            '<a href="https://example.org/API_Known.html">it</a>',
            '<p><a href="Known&quot;">it</a></p>',
        ),
        ("<code> <a>Known</a> </code>", '<p><code> <a href="Known&quot;">Known</a> </code></p>'),
        ("</p></ul></a></b>", ""),
        ("", ""),
    ],
)
def test_loose_html_becomes_valid_html(loose: str, valid: str) -> None:
    assert clean(loose, lambda name: 'Known"' if name == "Known" else None) == valid


def test_texts_for_lists() -> None:
    assert text_of("<p>a &amp; <b>b</b>\n\n c</p>") == "a & b c"
    assert first_sentence("<p>One thing. Another.</p>") == "One thing."
    long = first_sentence("<p>" + "word " * 100 + "</p>")
    assert len(long) <= 160
    assert long.endswith("word…")


def test_links_are_relative() -> None:
    assert relative("/", "/services/sqs/") == "services/sqs/"
    assert relative("/services/sqs/", "/services/sqs/SendMessage") == "SendMessage"
    assert relative("/services/sqs/SendMessage", "/services/sqs/") == "./"
    assert relative("/services/sqs/SendMessage", "/") == "../../"


def test_it_refuses_pages_on_request() -> None:
    with TestClient(create_app(services=1)) as client:
        assert client.get("/refuse?for=60").status_code in (404, 405), "no crawler causes it"
        assert client.post("/refuse?for=soon").status_code == 422
        assert client.post("/refuse?for=60").status_code == 200
        refused = client.get("/")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
        assert client.get("/healthz").status_code == 200
        client.post("/refuse?for=0")
        assert client.get("/").status_code == 200

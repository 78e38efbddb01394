"""Tests of the browser's checks: they accept a good page, and find each fault of a bad one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser

from tests.ui.browser import Visitor

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
HEAD = "<!doctype html><html lang=en><title>good</title><link rel=icon href=data:,>"
BODY = "<main><h1>Good</h1><p>{}</p></main></html>"
FAULTS = {
    "console": '<script src="/talk.js"></script>',
    "policy: style-src": '<b style="color: red">inline</b>',
    "policy: script-src": "<script>document.title = 'inline'</script>",
    "policy: img-src": '<img alt="far" src="http://far.example/a.png">',
    "axe: image-alt": '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">',
    "too wide": "<svg width=4000 height=1 aria-hidden=true></svg>",
    "a request to http://far": '<img alt="far" src="http://far.example/a.png">',
    "error: broken": '<script src="/broken.js"></script>',
    "2 streams at once": '<script src="/twice.js"></script>',
}
SCRIPTS = {
    "/talk.js": "console.log('psst')",
    "/broken.js": "throw new Error('broken')",
    "/twice.js": "fetch('/page/events'); fetch('/page/events?again')",
}


#: The policy would prevent its creation.
ALONE = "a request to http://far"


def path_of(faults: list[str]) -> str:
    return f"/{'alone' if faults == [ALONE] else 'all'}"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        script = SCRIPTS.get(self.path)
        wrong = {"/alone": [ALONE], "/all": [name for name in FAULTS if name != ALONE]}.get(
            self.path, []
        )
        body = HEAD + BODY.format("".join(FAULTS[name] for name in wrong))
        self.send_response(200)
        self.send_header(
            "Content-Type", "text/javascript" if script else "text/html; charset=utf-8"
        )
        if self.path != "/alone":
            self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write((script or body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_it_has_nothing_to_say_of_a_good_page(browser: Browser, origin: str) -> None:
    visitor = Visitor(browser, origin)
    visitor.open("/")
    visitor.leave()


@pytest.mark.parametrize("faults", [[ALONE], [name for name in FAULTS if name != ALONE]], ids=len)
def test_it_finds_each_fault(browser: Browser, origin: str, faults: list[str]) -> None:
    visitor = Visitor(browser, origin)
    visitor.open(path_of(faults))
    with pytest.raises(AssertionError) as found:
        visitor.leave()
    assert [fault for fault in faults if fault not in str(found.value)] == []

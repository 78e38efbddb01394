"""A browser in memory: it asks for HTML, says which page sent it, and keeps cookies."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.keys import Keys

BROWSER = {
    "Accept": "text/html,application/xhtml+xml",
    "Sec-Fetch-Site": "same-origin",
    "Origin": BASE,
}


def as_browser(client: TestClient) -> TestClient:
    """The same client, which now sends what a browser sends, and follows no redirect."""

    def named(request: Any) -> None:
        if request.method == "GET":
            # Browsers send their origin with requests that change something.
            request.headers.pop("Origin", None)

    client.headers.update(BROWSER)
    client.follow_redirects = False
    client.event_hooks = {"request": [named]}
    return client


def results(page: Any) -> list[tuple[str, bool, str]]:
    """Return the results on a page: for each subject its name, whether the action was carried out,
    and the message.
    """
    note = page.text.partition('role="status" aria-label="Result"')[2].partition("</section>")[0]
    found = re.findall(r'<li( class="bad")?>(?:<a [^>]*>)?([^<:]*)(?:</a>)?: (.*?)</li>', note)
    return [(html.unescape(name), not bad, html.unescape(text)) for bad, name, text in found]


def followed(browser: TestClient, answer: Any) -> Any:
    """Return the page to which a form's response redirects, or else the response itself."""
    if answer.status_code != 303:
        return answer
    return browser.get(answer.headers["location"])


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def browser(harness: Harness) -> Iterator[TestClient]:
    """A browser on a gateway without authentication."""
    with harness.client() as client:
        yield as_browser(client)


@pytest.fixture
def api(harness: Harness, keys: Keys) -> Iterator[TestClient]:
    """A client of a gateway that requires tokens."""
    with harness.client(harness.new_app(entrance=keys.entrance())) as client:
        yield as_browser(client)

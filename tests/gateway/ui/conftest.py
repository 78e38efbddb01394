"""A browser in memory: it asks for HTML, says which page sent it, and keeps cookies."""

from __future__ import annotations

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
            # Browsers name themselves where they change something.
            request.headers.pop("Origin", None)

    client.headers.update(BROWSER)
    client.follow_redirects = False
    client.event_hooks = {"request": [named]}
    return client


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def browser(harness: Harness) -> Iterator[TestClient]:
    """On an open gateway."""
    with harness.client() as client:
        yield as_browser(client)


@pytest.fixture
def api(harness: Harness, keys: Keys) -> Iterator[TestClient]:
    """On a gateway that asks for tokens."""
    with harness.client(harness.new_app(entrance=keys.entrance())) as client:
        yield as_browser(client)

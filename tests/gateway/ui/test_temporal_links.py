"""Runs, managers, graphs and schedules link to Temporal's UI, where its address is known."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.conftest import as_browser
from tests.gateway.ui.test_every_page import PATHS, things

UI = "https://temporal.example.com/namespaces/crawls"
PAGES = {
    "showRun": "/workflows/crawl%2Fplain%2Ffirst",
    "showManager": "/workflows/manager%2Fplain%2Ff",
    "showGraph": "/workflows/graph%2Fnightly",
    "showSchedule": "/schedules/crawl-schedule%2Fnightly",
}


def links(client: TestClient, page: str) -> list[str]:
    """The addresses of the links with the label "Temporal"."""
    answer = as_browser(client).get(PATHS[page])
    assert answer.status_code == 200
    return re.findall(r'<a href="([^"]*)" rel="noreferrer">Temporal</a>', answer.text)


@pytest.fixture
def filled(harness: Harness) -> Harness:
    with harness.client() as client:
        client.post("/v1/runs", json={"crawler": "plain", "request_id": "first"})
        things(client)
    return harness


@pytest.mark.parametrize("address", [UI, f"{UI}/"])
def test_each_page_has_one_link(filled: Harness, address: str) -> None:
    with filled.client(filled.new_app(temporal_ui=address)) as client:
        found = {page: links(client, page) for page in PAGES}
    assert found == {page: [UI + path] for page, path in PAGES.items()}


def test_there_is_none_where_the_address_is_unknown(filled: Harness) -> None:
    with filled.client() as client:
        assert [links(client, page) for page in PAGES] == [[]] * len(PAGES)

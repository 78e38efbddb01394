"""Anything that a crawler may leave, through every reader: bounded memory and time, and nothing
that executes.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from mcp import Client

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.item_table import COLUMNS_MAX
from crawler_lifecycle.features.mcp import cli as mcp
from tests.gateway.api.test_files import _run
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.hostile_feeds import FEEDS, READERS, WITHOUT_ITEMS
from tests.gateway.ui.conftest import BROWSER

#: The limits of one reader for all feeds: MiB of memory, and processor seconds. They are far above
#: actual use, and far below what one of these feeds took before the limits existed.
MEMORY_MIB = 320
PROCESSOR_S = 60
#: Less than the dictionaries of all rows of the endless record.
ROWS_MIB = 24


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_has_bounds(reader: str) -> None:
    words = [sys.executable, "-m", "tests.gateway.hostile_feeds", reader]
    told = subprocess.run(words, check=True, capture_output=True, text=True, timeout=500).stdout
    took: dict[str, dict[str, float]] = json.loads(told)
    if reader == "table":
        assert not any(took[feed]["bytes"] for feed in WITHOUT_ITEMS), took
    assert set(took) == set(FEEDS).difference(WITHOUT_ITEMS if reader != "table" else ())
    assert sum(one["mib"] for one in took.values()) < MEMORY_MIB, took
    assert took["endless record"]["mib"] < ROWS_MIB, took
    assert sum(one["cpu_s"] for one in took.values()) < PROCESSOR_S, took


class Left:
    """A gateway, and the folder in which a run leaves its files."""

    def __init__(self, client: TestClient, run_id: int, folder: Path) -> None:
        self.client, self.run_id, self._folder = client, run_id, folder

    def leave(self, feed: str) -> None:
        name, pieces = FEEDS[feed]
        for file in self._folder.iterdir():
            file.unlink()
        with (self._folder / name).open("wb") as file:
            file.writelines(pieces())


@pytest.fixture
def left(harness: Harness, tmp_path: Path) -> Iterator[Left]:
    run_id, _, home = _run(harness, tmp_path)
    with harness.client(harness.new_app(live_files=LocalFiles(tmp_path))) as client:
        client.headers.update(BROWSER)
        yield Left(client, run_id, home / "0" / "1" / "files")


@pytest.mark.parametrize("feed", FEEDS)
def test_page_and_api_show_little_of_it(left: Left, feed: str) -> None:
    left.leave(feed)
    page = left.client.get(f"/runs/{left.run_id}/items?stats=true")
    assert (page.status_code, len(page.content) < 2**22) == (200, True)
    assert not re.search("<script>alert|\x1b|\u202e|\x00", page.text)
    table = left.client.get(f"/v1/runs/{left.run_id}/items?limit=1000").json()
    assert len(table["columns"]) <= COLUMNS_MAX
    assert table["rows"] or table["notes"], "a feed of which nothing is shown says why"


@pytest.mark.parametrize("feed", ["tricky", "marked", "pipes"])
def test_no_cell_of_csv_acts(left: Left, feed: str) -> None:
    left.leave(feed)
    answer = left.client.get(f"/v1/runs/{left.run_id}/items/feed?format=csv")
    rows = list(csv.reader(io.StringIO(answer.content.decode(), newline="")))
    assert len({len(row) for row in rows}) == 1, "no cell ended its row"
    assert not [cell for row in rows for cell in row if re.match("\ufeff*[=@\r\n\t]", cell)]


async def test_an_assistant_gets_little_of_it_and_as_data(left: Left) -> None:
    def pass_on(request: httpx.Request) -> httpx.Response:
        answer = left.client.get(str(request.url))
        return httpx.Response(
            answer.status_code, content=answer.content, headers={"content-type": "application/json"}
        )

    def connect() -> Gateway:
        gateway = Gateway(BASE)
        gateway._http.close()
        gateway._http = httpx.Client(base_url=BASE, transport=httpx.MockTransport(pass_on))
        return gateway

    async with Client(mcp.build(connect)) as client:
        for feed in FEEDS:
            left.leave(feed)
            result: Any = await client.call_tool("items", {"run_id": left.run_id, "limit": 100})
            text = result.content[0].text
            assert len(text) < mcp.TEXT_MAX + 1_000, feed
            word = re.match(r"[^\n]*\n--- data ([0-9a-f]{16})\n", text)
            assert word is not None, feed
            assert text.endswith(f"\n--- end of data {word[1]}"), feed
            assert not re.search("[\x00\x1b\r\u202e]", text), feed

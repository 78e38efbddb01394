"""Files of crawlers in a browser: foreign bytes are shown as text or a verified picture, and never
as a page.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.conftest import BROWSER

EVIL = "<script>alert(1)</script>\"'\x1b]0;x\x07\u202e"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(50)


@pytest.fixture
def left(harness: Harness, tmp_path: Path) -> Iterator[tuple[TestClient, str, Path]]:
    """A browser, the address of a run, and the folder of its files."""
    with harness.client(harness.new_app(live_files=LocalFiles(tmp_path))) as browser:
        browser.headers.update(BROWSER)
        run_id = browser.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"]
        home = tmp_path / "tasks" / str(harness.run(run_id).ref)
        files = home / "0" / "1" / "files"
        files.mkdir(parents=True)
        yield browser, f"/runs/{run_id}", files


def shown(browser: TestClient, address: str, **params: str) -> str:
    """Return the page, in which foreign text became no tag, attribute or escape sequence."""
    answer = browser.get(address, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert not re.search(r"<script>alert|<svg onload|\x1b|\u202e", answer.text)
    return answer.text


def test_every_file_of_a_list_can_be_opened_and_fetched(left: tuple[TestClient, str, Path]) -> None:
    browser, run, files = left
    shown(browser, f"{run}/files")
    (files / "items.jsonl").write_text("{}\n" * 700)
    (files / 'a"><script>alert(1)<').write_text("x")
    (files / "ä b&c=d#e?f%2F.txt").write_text("y")
    (files / "link").symlink_to("/etc/passwd")
    page = shown(browser, f"{run}/files")
    assert "2.1 KiB" in page
    assert "1 names are omitted" in page
    addresses = re.findall(r'href="(/(?:v1/)?runs/\d+/(?:file|items)\?[^"]*)"', page)
    assert len(addresses) == 7
    for address in addresses:
        assert browser.get(address.replace("&amp;", "&")).status_code == 200, address


def test_items_whatever_is_in_them(left: tuple[TestClient, str, Path]) -> None:
    browser, run, files = left
    items = [{"title": EVIL, EVIL: n} for n in range(300)]
    (files / "items.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in items) + '{"title"'
    )
    page = shown(browser, f"{run}/items", name="task-0/items.jsonl")
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 201
    assert "1 to 200 of 300 items" in page
    assert "1 last lines were incomplete" in page
    assert ">201<" in shown(browser, f"{run}/items", offset="200", contains="SCRIPT", stats="true")
    assert "100.0 %" in shown(browser, f"{run}/items", field="title", contains="", stats="true")
    assert "0 items that match" in shown(
        browser, f"{run}/items", field="<script>alert(1)", contains='"><svg onload'
    )
    (files / "empty.csv").write_text("")
    assert "0 items" in shown(browser, f"{run}/items", name="task-0/empty.csv")
    (files / "items.jsonl").unlink()
    (files / "empty.csv").unlink()
    assert "CRAWL_FILES_DIR" in shown(browser, f"{run}/items")
    with (files / "line.jsonl").open("wb") as file:
        file.truncate(2**28)  # one line
    page = shown(browser, f"{run}/items", name="task-0/line.jsonl")
    assert "1 lines were not JSON" in page


def test_pictures_are_proved_and_all_else_is_text(left: tuple[TestClient, str, Path]) -> None:
    browser, run, files = left
    (files / "a.txt").write_bytes(PNG)
    (files / "a.png").write_text("<svg onload=alert(1)>\x1b[31m\u202e")
    (files / "large.png").write_bytes(PNG + bytes(2**21))
    (files / "a.bin").write_bytes(b"\x00\x01" * 100)
    (files / "long.txt").write_text("ä" * 2**20)
    picture = f'<img src="data:image/png;base64,{base64.b64encode(PNG).decode()}"'
    assert picture in shown(browser, f"{run}/file", name="task-0/a.txt")
    assert "&lt;svg onload=alert(1)&gt;" in shown(browser, f"{run}/file", name="task-0/a.png")
    for name in ("large.png", "a.bin"):
        assert "<img" not in shown(browser, f"{run}/file", name=f"task-0/{name}")
    assert len(shown(browser, f"{run}/file", name="task-0/long.txt").encode()) < 2**19
    for name in ("task-0/none", "../../run.json", "task-0/../../../run.json", "x" * 2000):
        for what in ("file", "items"):
            answer = browser.get(f"{run}/{what}", params={"name": name})
            assert answer.status_code in (404, 422), name
            assert answer.headers["content-type"].startswith("text/html")


def test_where_files_lie_that_cannot_be_read_here(harness: Harness) -> None:
    with harness.client(harness.new_app(elsewhere="they lie in the bucket of ours")) as browser:
        browser.headers.update(BROWSER)
        run_id = browser.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"]
        assert "they lie in the bucket of ours" in shown(browser, f"/runs/{run_id}/files")

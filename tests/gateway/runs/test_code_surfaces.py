"""Every place that shows the code of a run shows the same: a list of places, and one comparison."""

from __future__ import annotations

import csv
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.output import written
from crawler_lifecycle.cloudevents import ENTRY_MAX, event_text
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.code import Code, short_digest
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED, event_key
from crawler_lifecycle.domain.run_data import Items
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.features.mcp.cli import Tools
from crawler_lifecycle.graphs import client
from crawler_lifecycle.subjects import RUN, cell_of
from tests.contracts.store.harness import bad_end, good_end
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.runs.test_tries_that_count import PARENT, Crawl
from tests.gateway.ui.test_things import words

#: The codes of the first attempt, and of the second one, which resumed with another version.
CODES = (
    Code("sha256:" + "3" * 64, "v1", "abcdef0123", "first note"),
    Code("sha256:" + "4" * 64, "v2"),
)


@dataclass
class Scene:
    """An ended run, and the ways to read it."""

    harness: Harness
    crawl: Crawl
    client: TestClient

    @property
    def run_id(self) -> int:
        return self.crawl.fence.run_id

    def get(self, path: str, **params: Any) -> Any:
        answer = self.client.get(f"/v1/runs{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, path: str) -> Any:
        return self.client.get(path, headers={"Accept": "text/html"})

    def gateway(self) -> Gateway:
        """Return the client of ``crawlctl``, connected to the app of this test."""
        gateway = Gateway(BASE, token=None)
        gateway._http.close()
        gateway._http = self.connection()
        return gateway

    def connection(self) -> httpx.Client:
        """Return an HTTP client whose calls the app of this test answers."""

        def answered(request: httpx.Request) -> httpx.Response:
            headers = {"Range": request.headers["range"]} if "range" in request.headers else {}
            found = self.client.request(request.method, str(request.url), headers=headers)
            return httpx.Response(found.status_code, content=found.content)

        return httpx.Client(base_url=BASE, transport=httpx.MockTransport(answered))

    def event(self) -> Any:
        key = event_key(self.crawl.fence.run, self.crawl.fence.attempt, EVENT_RUN_ENDED)
        event = self.harness.store.events.find_event(key)
        assert event is not None
        return event

    def manifest(self) -> Any:
        url = self.harness.store.exports.list_exports(self.run_id)[-1]["url"]
        packed = zipfile.ZipFile(io.BytesIO(b"".join(self.crawl.archive.open(str(url)))))
        return json.loads(packed.read("manifest.json"))


@pytest.fixture
def scene(harness: Harness, tmp_path: Path) -> Iterator[Scene]:
    crawl = Crawl(harness, tmp_path, random.Random(0))
    crawl.fence = crawl.story.run("r2", crawler="plain", parent=PARENT)
    for code, resumed, end in zip(CODES, (None, True), (bad_end, good_end), strict=True):
        crawl.story.deploy(crawl.fence)
        [task] = harness.store.polls.found_state(crawl.fence).tasks
        folder = crawl.home / "0" / str(task.attempt) / "files"
        folder.mkdir(parents=True)
        (folder / "items.jsonl").write_text('{"n": 1}\n')
        crawl.code = code
        crawl.poll(task, Phase.EXECUTING, resumed, task.attempt)
        crawl.poll(task, Phase.ENDED, resumed, task.attempt, end=end(harness.clock.now))
        crawl.story.end(crawl.fence)
        if resumed is None:
            crawl.resume()
    crawl.export()
    app = harness.new_app(live_files=LocalFiles(tmp_path), archive=crawl.archive)
    with harness.client(app) as client:
        yield Scene(harness, crawl, client)


def of_mcp(scene: Scene) -> Any:
    text = Tools(scene.gateway).describe_run(scene.run_id)
    return json.loads(text[text.index("{") : text.rindex("}") + 1])["codes"]


def items_of_feed(scene: Scene) -> Any:
    found = scene.client.get(f"/v1/runs/{scene.run_id}/items/feed", params={"code": True}).text
    return [json.loads(line) for line in found.splitlines()]


def items_of_graph(scene: Scene) -> Any:
    platform = client.Gateway(BASE, token="")
    platform._http.close()
    platform._http = scene.connection()
    items = Items(platform, [scene.run_id], code=True)
    for first, second in zip(items, items, strict=True):
        assert first == second, "two readers do not disturb each other"
    return list(items)


def items_of_mcp(scene: Scene) -> Any:
    text = Tools(scene.gateway).items(scene.run_id, code=True)
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [row | {"n": int(row["n"])} for row in rows]


#: Places for programs -> the codes that they show.
DOCUMENTS: dict[str, Callable[[Scene], Any]] = {
    "run": lambda scene: scene.get(f"/{scene.run_id}")["codes"],
    "list": lambda scene: scene.get("")["runs"][0]["codes"],
    "list of a code": lambda scene: scene.get("", code="3" * 64)["runs"][0]["codes"],
    "tasks": lambda scene: [
        row["code"] for row in scene.get(f"/{scene.run_id}/tasks", superseded=True)["tasks"]
    ],
    "event": lambda scene: scene.event().body["codes"],
    "webhook": lambda scene: json.loads(event_text(scene.event(), ENTRY_MAX))["data"]["codes"],
    "manifest": lambda scene: scene.manifest()["codes"],
    "crawlctl": lambda scene: scene.gateway().run(scene.run_id)["codes"],
    "assistant": of_mcp,
}
#: Places for people -> the text that has the codes.
TEXTS: dict[str, Callable[[Scene], str]] = {
    "page": lambda scene: words(scene.page(f"/runs/{scene.run_id}")),
    "list": lambda scene: words(scene.page("/runs?code=444444")),
    "tasks": lambda scene: words(scene.page(f"/runs/{scene.run_id}/tasks?superseded=true")),
    "table": lambda scene: next(csv.DictReader(io.StringIO(scene.page("/runs?format=csv").text)))[
        "Code"
    ],
    "crawlctl": lambda scene: " ".join(
        written(cell_of(scene.gateway().run(scene.run_id), source)) for _, source in RUN.facts
    ),
}


@pytest.mark.parametrize("place", DOCUMENTS)
def test_programs_see_all_codes_of_a_run(scene: Scene, place: str) -> None:
    assert DOCUMENTS[place](scene) == [asdict(code) for code in CODES]


@pytest.mark.parametrize("place", TEXTS)
def test_people_see_all_codes_of_a_run(scene: Scene, place: str) -> None:
    text = TEXTS[place](scene)
    for code in CODES:
        assert f"{code.version} {short_digest(code.digest)}" in text
    for part in ("commit abcdef0123", "first note"):
        assert part in text


@pytest.mark.parametrize("items", [items_of_feed, items_of_graph, items_of_mcp])
def test_each_item_names_its_code(scene: Scene, items: Callable[[Scene], Any]) -> None:
    assert items(scene) == [
        {"_code": code.digest, "_version": code.version, "n": 1} for code in CODES
    ]

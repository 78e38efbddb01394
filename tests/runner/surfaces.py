"""What people get from the files of one task, wherever they ask, by the code of each interface.

The page and the API show and export, ``crawlctl`` makes Parquet, a graph function gets items, and
each of them reads the same from the archive when the task's folder is gone.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from pyarrow import parquet

from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.run_files import FileQuestions, FileReading, RunFiles
from crawler_lifecycle.activities.shared import answered
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.cli.runs.items import _FeedItems
from crawler_lifecycle.cli.runs.parquet import as_parquet
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.item_export import LEFT_OUT, chosen, fields_of
from crawler_lifecycle.domain.item_table import cell
from crawler_lifecycle.domain.items import as_text
from crawler_lifecycle.domain.run_data import AskedFiles, Items
from crawler_lifecycle.gateway.api.paging import FeedChoice, ItemPage
from crawler_lifecycle.gateway.runs.items import RunItems
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.web.problems import Problem
from tests.contracts.store import harness as stories
from tests.gateway.gateway_harness import Clock, Harness
from tests.support.databases import make_tables

PARENT = "graph/nightly"
#: As many items as a page of the API.
PAGE = 1_000


class Direct:
    """The functions that the routes call, without HTTP."""

    def __init__(self, run_id: int, store: Any, files: RunFiles) -> None:
        self._run_id, self._store, self._files = run_id, store, files
        self._items = RunItems(files, store.runs, store.tasks)

    def page(self) -> Any:
        return asdict(self._items.table(self._run_id, ItemPage(limit=PAGE), PAGE))

    def stats(self) -> Any:
        return asdict(self._items.stats(self._run_id, ItemPage()))

    def feed(self, format: Any) -> str:
        return b"".join(self._items.feed(self._run_id, FeedChoice(format=format))).decode()

    # --- as ``crawlctl`` asks

    def get(self, path: str, **_: object) -> Any:
        return asdict(self._files.list(self._store.runs.get_run(self._run_id)))

    def run(self, run_id: int) -> Any:
        return {}

    def file(self, run_id: int, name: str) -> Iterator[bytes]:
        opened = self._files.open(self._store.runs.get_run(run_id), name)
        assert opened is not None, name
        yield from opened.pieces


class ByHttp:
    """The routes themselves."""

    def __init__(self, run_id: int, client: TestClient) -> None:
        self._client, self._of = client, f"/v1/runs/{run_id}"

    def page(self) -> Any:
        return self._client.get(f"{self._of}/items", params={"limit": PAGE}).json()

    def stats(self) -> Any:
        return self._client.get(f"{self._of}/items/stats").json()

    def feed(self, format: str) -> str:
        answer = self._client.get(f"{self._of}/items/feed", params={"format": format})
        if answer.status_code == 404:
            raise Problem(404, "file_not_found", answer.text)
        return answer.content.decode()

    def get(self, path: str, **_: object) -> Any:
        return self._client.get(path).json()

    def run(self, run_id: int) -> Any:
        return self._client.get(self._of).json()

    def file(self, run_id: int, name: str) -> Iterator[bytes]:
        yield self._client.get(f"{self._of}/file", params={"name": name}).content


class Surfaces(FileQuestions):
    """One run with one task, whose ``files`` are replaced again and again."""

    def __init__(self, root: Path) -> None:
        self._root, clock = root, Clock()
        self._harness = Harness(
            open_store(make_tables(f"sqlite:///{root}/runs.db"), clock=clock), clock
        )
        store = self._harness.store
        self._fence = stories.Harness(store, clock).run(crawler="plain", parent=PARENT)  # type: ignore[arg-type]
        self._home = root / "tasks" / f"{self._fence.run_id}-{self._fence.run_uid}"
        self.files = self._home / "0" / "1" / "files"
        self._archive = open_archive((root / "archive").as_uri())
        files = RunFiles(
            store.tasks, store.exports, LocalFiles(root), ArchivedFiles(self._archive), "elsewhere"
        )
        self.reading = FileReading(store.runs, files, PARENT, clock)
        self._direct = Direct(self._fence.run_id, store, files)

    def empty(self) -> Path:
        """Return the empty folder of the task."""
        shutil.rmtree(self._root / "tasks", ignore_errors=True)
        self.files.mkdir(parents=True)
        return self.files

    @contextmanager
    def by_http(self) -> Iterator[ByHttp]:
        """Use the gateway's app meanwhile."""
        app = self._harness.new_app(live_files=LocalFiles(self._root), archive=self._archive)
        with self._harness.client(app) as client:
            yield ByHttp(self._fence.run_id, client)

    def difference(self, items: list[Any], asked: ByHttp | None = None) -> str | None:
        """Return what an interface returns from the task's files that differs from these items, in
        any order of files.
        """
        for place in ("folder", "archive"):
            if place == "archive":
                source = FileSource("task-0", self.files, root=self._root / "tasks")
                stored = self._archive.store("x.zip", [source], {}, lambda *_: None)
                self._harness.store.exports.record_export(self._fence, "exported", stored, None)
                shutil.rmtree(self._root / "tasks")
            for name, is_told in _SURFACES.items():
                try:
                    told = is_told(self, asked or self._direct, items)
                except Problem as problem:
                    told = None if problem.status == 404 and not items else repr(problem)
                if told is not None:
                    return f"{name} from the {place}: {told}"
        return None

    # --- the surfaces: what differs

    def shown(self, asked: Any, items: list[Any]) -> str | None:
        page = asked.page()
        names = [column["name"] for column in page["columns"]]
        rows = [
            {name: text for name, text in zip(names, row, strict=True) if text}
            for row in page["rows"]
        ]
        wanted = [
            {name: text for name, value in fields_of(item).items() if (text := cell(value))}
            for item in items
        ]
        return _differs(rows, wanted[:PAGE]) or _differs([page["total"]], [len(items)])

    def counted(self, asked: Any, items: list[Any]) -> str | None:
        stats = asked.stats()
        filled = {field["name"]: field["filled"] for field in stats["fields"]}
        names = {name for item in items for name in fields_of(item)}
        wanted = {
            name: sum(fields_of(item).get(name) not in (None, "", [], {}) for item in items)
            for name in names
        }  # fmt: skip
        told = {"items": stats["items"], **filled}
        return _differs(
            [told], [{"items": len(items), **{name: n for name, n in wanted.items() if n}}]
        )

    def json_lines(self, asked: Any, items: list[Any]) -> str | None:
        return _differs([json.loads(line) for line in asked.feed("jsonl").splitlines()], items)

    def table(self, asked: Any, items: list[Any]) -> str | None:
        names, *rows = csv.reader(io.StringIO(asked.feed("csv"), newline=""))
        wanted = [
            {name: as_text(value) for name, value in fields_of(item).items()} for item in items
        ]
        # A text that a spreadsheet would execute is preceded by an apostrophe.
        found = [
            {name: text.removeprefix("'") for name, text in zip(names, row, strict=True) if text}
            for row in rows
        ]
        return _differs(
            found,
            [
                {name: text.removeprefix("'") for name, text in row.items() if text}
                for row in wanted
            ],
        )

    def parquet(self, asked: Any, items: list[Any]) -> str | None:
        found = chosen(_FeedItems(asked, self._fence.run_id, None))
        rows = parquet.read_table(io.BytesIO(b"".join(as_parquet(found)))).to_pylist()
        told = []
        for row in rows:
            row |= json.loads(row.pop(LEFT_OUT) or "{}")
            told.append(_as_column(row))
        wanted = [_as_column(fields_of(item)) for item in items]
        return _differs(told, wanted)

    def graph(self, asked: Any, items: list[Any]) -> str | None:
        source = AskedFiles(
            lambda name, **given: json.loads(json.dumps(answered(self, name, given)))
        )
        return _differs(list(Items(source, [self._fence.run_id])), items)


_SURFACES = {
    "shown as a table": Surfaces.shown,
    "counted by statistics": Surfaces.counted,
    "exported as JSON Lines": Surfaces.json_lines,
    "exported as CSV": Surfaces.table,
    "exported as Parquet": Surfaces.parquet,
    "handed to a graph": Surfaces.graph,
}


def _as_column(item: dict[str, Any]) -> dict[str, str]:
    """Return the values as texts, with numbers of any type alike, because a column has one type."""
    return {name: _alike(as_text(value)) for name, value in item.items() if value is not None}


def _alike(text: str) -> str:
    try:
        return str(float(text))
    except ValueError:
        return text


def _differs(told: list[Any], wanted: list[Any]) -> str | None:
    """Return the first difference, or nothing."""
    if told == wanted:
        return None
    one, other = (
        sorted(json.dumps(item, sort_keys=True) for item in items) for items in (told, wanted)
    )
    if one == other:
        return None
    place = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return f"{len(told)} of {len(wanted)}: {one[place : place + 1]!s:.300}, not {other[place : place + 1]!s:.300}"

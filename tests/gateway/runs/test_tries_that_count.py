"""The results of a run: every interface gives the same number, after any stops, resumes, tries,
losses and pruning.
"""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.activities.run_files import FileQuestions, FileReading, RunFiles
from crawler_lifecycle.activities.shared import answered
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.retries import NextTry
from crawler_lifecycle.domain.run_data import AskedFiles, Items
from crawler_lifecycle.domain.task import Counters, Phase, TaskState
from crawler_lifecycle.domain.tries import counting
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.runner.item_files import DECLARED, feeds, items_of
from crawler_lifecycle.runner.item_reader import SkippedData
from tests.contracts.store import harness as stories
from tests.contracts.store.harness import bad_end, good_end, seen
from tests.gateway.gateway_harness import Harness
from tests.support.fakes.services import FakeCatalogue, FakeNotifier, FakeSink

PARENT = "graph/nightly"


@dataclass
class Crawl(FileQuestions):
    """A run with real folders and archives, and the output of its tries that still counts."""

    harness: Harness
    root: Path
    dice: random.Random
    keyed: bool = False
    """The entry names a key, and items come twice."""
    brought: dict[int, list[int]] = field(default_factory=dict)
    """For each index, the items of the tries that count."""
    known: dict[int, bool] = field(default_factory=dict)
    """For each index, whether a runner told the fields of all these items."""
    numbers: int = 0
    code: Code = Code()  # noqa: RUF009
    """The code of the present try."""
    codes: dict[int, Code] = field(default_factory=dict)
    """The code of the try that wrote each item first."""

    def __post_init__(self) -> None:
        self.story = stories.Harness(self.harness.store, self.harness.clock)  # type: ignore[arg-type]
        self.archive, store = open_archive((self.root / "archive").as_uri()), self.harness.store
        self.completion = CompletionActivities(
            store.completion, store.exports, store.deployment, store.runs, store.tasks, store.events,
            LocalFiles(self.root), FakeSink(), self.archive, FakeCatalogue(), [FakeNotifier()],
            store.sites.robots_of_run,
        )  # fmt: skip
        self.fence: Fence = self.story.run(
            tasks=self.dice.randint(1, 3), crawler="plain", parent=PARENT
        )
        (self.root / "tasks").mkdir()

    @property
    def home(self) -> Path:
        return self.root / "tasks" / f"{self.fence.run_id}-{self.fence.run_uid}"

    @property
    def reading(self) -> FileReading:
        store = self.harness.store
        files = RunFiles(
            store.tasks,
            store.exports,
            LocalFiles(self.root),
            ArchivedFiles(self.archive),
            "elsewhere",
        )
        return FileReading(store.runs, files, PARENT, self.harness.clock)

    # --- what happens

    def attempt(self) -> None:
        """Execute the tasks of one attempt, with further tries of those that fail, and end the run."""
        for _ in range(3):
            self.story.deploy(self.fence)
            tasks = self.story.store.polls.found_state(self.fence).tasks
            if not tasks:
                break
            for task in tasks:
                self.a_try(task)
            if self.dice.random() < 0.5:
                break
            self.story.store.retries.retry_ended(self.fence, lambda end, used: NextTry(0), 9)
        for task in self.story.store.polls.found_state(self.fence).tasks:
            self.story.poll(self.fence, [seen(task, Phase.GONE, self.harness.clock.now)])
        self.story.store.deployment.mark_started(self.fence, self.harness.clock.now)
        self.story.end(self.fence)

    def a_try(self, task: TaskState) -> None:
        """Let one try write items, be seen or not, and end well, badly or without a trace."""
        harness, dice = self.harness, self.dice
        earlier = self.brought.setdefault(task.index, [])
        resumed = None if task.attempt == 1 else dice.choice([True, True, False, None])
        began = dice.random() < 0.85
        if not began:
            end = bad_end(harness.clock.now) if dice.random() < 0.5 else None
            phase = Phase.ENDED if end else Phase.GONE
            self.story.poll(
                self.fence, [seen(task, phase, harness.clock.now, uid=task.uid, end=end)]
            )
            return
        if resumed is False:
            earlier.clear()
            self.known[task.index] = True
        before = len(earlier)
        version = dice.randrange(3)
        self.code = Code(f"sha256:{version:064x}", f"v{version}" if version else None)
        folder = self.home / str(task.index) / str(task.attempt) / "files"
        folder.mkdir(parents=True)
        if self.keyed:
            (folder / DECLARED).write_text('{"key": "n"}\n')
        with (folder / "items.jsonl").open("w") as file:
            for _ in range(dice.randint(1, 6)):
                if self.keyed and earlier and dice.random() < 0.5:
                    file.write(json.dumps({"n": dice.choice(earlier)}) + "\n")
                    continue
                self.numbers += 1
                earlier.append(self.numbers)
                self.codes[self.numbers] = self.code
                file.write(json.dumps({"n": self.numbers}) + "\n")
                if dice.random() < 0.3:
                    file.flush()
                    self.poll(task, Phase.EXECUTING, resumed, len(earlier))
        self.poll(task, Phase.EXECUTING, resumed, len(earlier))
        way = dice.choice(["well", "badly", "badly", "lost"])
        fields = Coverage(len(earlier) - before, {"n": 1.0}) if way != "lost" else None
        self.known[task.index] = self.known.get(task.index, True) and fields is not None
        if way == "lost":
            self.story.poll(self.fence, [seen(task, Phase.GONE, harness.clock.now)])
            return
        end = good_end(harness.clock.now) if way == "well" else bad_end(harness.clock.now)
        self.poll(task, Phase.ENDED, resumed, len(earlier), end=end, fields=fields)

    def poll(
        self, task: TaskState, phase: Phase, resumed: bool | None, items: int, **more: Any
    ) -> None:
        more |= {
            "uid": task.uid,
            "code": self.code,
            "resumed": resumed,
            "counters": Counters(items=items, pages=items),
        }
        self.story.poll(self.fence, [seen(task, phase, self.harness.clock.now, **more)])
        if phase is Phase.EXECUTING:
            self.story.store.deployment.mark_started(self.fence, self.harness.clock.now)

    def export(self) -> None:
        ActivityEnvironment().run(self.completion.export_supporting_files, self.fence)

    def resume(self) -> bool:
        """Begin the next attempt. Return false if the run has completed and nothing can be resumed."""
        if self.story.row(self.fence).status == "COMPLETED":
            return False
        owner = stories.Owner("crawl/plain/again", f"chain-{self.fence.attempt + 1}")
        self.fence = self.story.resume(self.fence, owner)
        return True

    # --- what is said about it

    def ask_all(self, client: TestClient, readable: int | None = None) -> None:
        """Ask each interface.

        ``readable`` is the number of items whose files remain; by default all.
        """
        run, wanted = self.fence.run_id, sorted(n for items in self.brought.values() for n in items)
        whole = readable is None
        assert (client.get(f"/v1/runs/{run}").json()["items"] or 0) == len(wanted)
        listed = client.get(f"/v1/runs/{run}/files").json()
        table = client.get(f"/v1/runs/{run}/items", params={"limit": 1000}).json()
        found = sorted(int(row[0]) for row in table["rows"])
        assert table["total"] == len(found)
        assert listed["items_missing"] == len(wanted) - len(found)
        missing = f"{len(wanted) - len(found)} of {len(wanted)} counted items cannot be read here"
        assert any(missing in note for note in table["notes"]) is (found != wanted)
        if whole:
            assert found == wanted
        else:
            assert not set(found) - set(wanted)
            assert len(found) == readable
        assert client.get(f"/v1/runs/{run}/items/stats").json()["items"] == len(found)
        page = client.get(f"/runs/{run}/items").text
        assert re.search(rf"(of |<p>){len(found)} items", page), page
        if found:
            feed = client.get(f"/v1/runs/{run}/items/feed").text
            assert sorted(json.loads(line)["n"] for line in feed.splitlines()) == found
            csv = client.get(f"/v1/runs/{run}/items/feed", params={"format": "csv"}).text
            assert sorted(map(int, csv.split()[1:])) == found
            self.ask_item_codes(client, len(found))
        # As crawlctl reads them.

        def data(name: str) -> bytes:
            return client.get(f"/v1/runs/{run}/file", params={"name": name}).content

        chosen = feeds((file["name"] for file in listed["files"]), data)
        read = [item["n"] for item in items_of(chosen, lambda name: [data(name)], SkippedData())]
        assert sorted(read) == found
        asked = AskedFiles(
            lambda name, **arguments: json.loads(json.dumps(answered(self, name, arguments)))
        )
        if whole and found:  # as a function of a graph reads them
            assert sorted(item["n"] for item in Items(asked, [run])) == found
            for item in Items(asked, [run], code=True, fields=["n"]):
                code = self.codes.get(item["n"], Code())
                assert item == {
                    "_code": code.digest,
                    "_version": code.version,
                    "n": item["n"],
                }
            for index, items in self.brought.items():
                assert sorted(item["n"] for item in Items(asked, [run], task=index)) == sorted(
                    items
                )
        elif wanted:
            with pytest.raises(NotDelivered, match="counted items cannot be read here"):
                asked.run_files(run)
        for row in client.get(f"/v1/runs/{run}/tasks").json()["tasks"]:
            of_task = client.get(
                f"/v1/runs/{run}/items", params={"task": row["task_id"], "limit": 1000}
            ).json()
            counted = len(self.brought.get(row["task_index"], ()))
            assert (row["items"] or 0) == counted
            assert (of_task["total"] == counted) or not whole

    def ask_item_codes(self, client: TestClient, count: int) -> None:
        """Each item names the code of the try that wrote it."""
        address = f"/v1/runs/{self.fence.run_id}/items"
        feed = client.get(f"{address}/feed", params={"code": True}).text
        rows = [json.loads(line) for line in feed.splitlines()]
        assert len(rows) == count
        for row in rows:
            code = self.codes.get(row["n"], Code())
            assert row == {"_code": code.digest, "_version": code.version, "n": row["n"]}
        csv = client.get(
            f"{address}/feed", params={"format": "csv", "code": True, "fields": "n"}
        ).text
        head, *lines = csv.splitlines()
        assert head == "_code,_version,n"
        wanted = [f"{row['_code'] or ''},{row['_version'] or ''},{row['n']}" for row in rows]
        assert lines == wanted
        table = client.get(address, params={"limit": 1000, "code": True}).json()
        names = [column["name"] for column in table["columns"]]
        assert [dict(zip(names, row, strict=True)) for row in table["rows"]] == [
            {name: None if row[name] is None else str(row[name]) for name in names} for row in rows
        ]

    def ask_archive(self) -> None:
        """Check that the files in the newest archive that its manifest does not call replaced
        contain the run's items.
        """
        url = str(self.harness.store.exports.list_exports(self.fence.run_id)[-1]["url"])
        packed = zipfile.ZipFile(io.BytesIO(b"".join(self.archive.open(url))))
        replaced = json.loads(packed.read("manifest.json"))["replaced"]
        names = [
            name
            for name in packed.namelist()
            if name.endswith("/items.jsonl") and name.partition("/")[0] not in replaced
        ]
        lines = [json.loads(line)["n"] for name in names for line in packed.read(name).splitlines()]
        found = set(lines) if self.keyed else lines
        assert sorted(found) == sorted(n for items in self.brought.values() for n in items)

    def ask_verdict(self) -> None:
        row = self.story.row(self.fence)
        if all(self.known.get(index) for index, items in self.brought.items() if items):
            assert (0 if row.fields is None else row.fields.items) == row.items or not row.items


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_asked_gives_the_same_number(
    seed: int, harness: Harness, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    crawl = Crawl(harness, tmp_path, dice, keyed=seed % 2 == 1)
    app = harness.new_app(live_files=LocalFiles(tmp_path), archive=crawl.archive)
    whole = True
    with harness.client(app) as client:
        for _ in range(dice.randint(2, 4)):
            if crawl.fence.attempt > 1 or crawl.brought:
                crawl.ask_all(client)
            crawl.attempt()
            crawl.ask_verdict()
            if crawl.home.exists():  # otherwise its files may be on their way into the archive
                crawl.ask_all(client)
            crawl.export()
            whole = whole or crawl.fence.attempt == 1
            if whole and harness.store.exports.list_exports(crawl.fence.run_id)[-1]["url"]:
                crawl.ask_archive()
            crawl.ask_all(client)
            if dice.random() < 0.4:
                # Pruned: now the archives have all files.
                shutil.rmtree(crawl.home, ignore_errors=True)
                whole = False
                crawl.ask_all(client)
            if not crawl.resume():
                break
            crawl.ask_all(client)


def test_items_whose_files_are_gone_are_told(harness: Harness, tmp_path: Path) -> None:
    """Stopped after 17 and resumed to 30; the folder of the first attempt was removed, and no
    archive has it.
    """
    crawl = Crawl(harness, tmp_path, random.Random(0))
    crawl.fence = crawl.story.run("r2", crawler="plain", parent=PARENT)
    for items, resumed, end in ((17, None, bad_end), (13, True, good_end)):
        crawl.story.deploy(crawl.fence)
        [task] = harness.store.polls.found_state(crawl.fence).tasks
        folder = crawl.home / "0" / str(task.attempt) / "files"
        folder.mkdir(parents=True)
        numbers = [1000 * task.attempt + n for n in range(items)]
        (folder / "items.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
        crawl.brought.setdefault(0, []).extend(numbers)
        crawl.poll(task, Phase.EXECUTING, resumed, 1)
        if task.attempt == 1:
            assert harness.run(crawl.fence.run_id).items == 1
        crawl.poll(task, Phase.ENDED, resumed, len(crawl.brought[0]), end=end(harness.clock.now))
        crawl.story.end(crawl.fence)
        if task.attempt == 1:
            shutil.rmtree(crawl.home)
            crawl.resume()
            assert harness.run(crawl.fence.run_id).items == 17, (
                "a try that waits has what it will go on from"
            )
    with harness.client(
        harness.new_app(live_files=LocalFiles(tmp_path), archive=crawl.archive)
    ) as client:
        notes = client.get(f"/v1/runs/{crawl.fence.run_id}/items").json()["notes"]
        assert notes == ["17 of 30 counted items cannot be read here: task-0 has no files"]
        crawl.ask_all(client, readable=13)


@pytest.mark.parametrize("rerun", [False, True])
def test_a_rerun_replaces_what_was_before(harness: Harness, tmp_path: Path, rerun: bool) -> None:
    """No runner has to report this, because nobody asked the try to continue."""
    fence = (story := stories.Harness(harness.store, harness.clock)).executing(crawler="plain")  # type: ignore[arg-type]
    story.finish(fence, failed=[] if rerun else [0])
    after = story.resume(fence, rerun=rerun)
    story.deploy(after)
    assert len(counting(harness.store.tasks.tries(fence.run_id))) == (1 if rerun else 2)
    assert [row.items for row in harness.store.tasks.list_tasks(fence.run_id)] == [
        None if rerun else 5
    ]

"""Exports of runs whose files were removed: stored archives remain, and missing files are reported."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.clusters.kubernetes.files.layout import files_path, state_path
from crawler_lifecycle.clusters.kubernetes.files.sources import VolumeFiles
from crawler_lifecycle.clusters.volume import VolumePlace
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.runner.state import NO_STATE, WENT_ON, JobState
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.harness import Clock, Harness
from tests.support.databases import make_tables
from tests.support.fakes.services import FakeCatalogue, FakeNotifier, FakeSink


class Scene:
    """An exported run with a real volume and a real archive."""

    def __init__(self, store: Store, clock: Clock, root: Path) -> None:
        self.store, self.harness, self.root = store, Harness(store, clock), root
        self.volume = root / "volume"
        self.archive = open_archive((root / "archive").as_uri())
        self.place = VolumePlace(self.volume)
        self.completion = CompletionActivities(
            store.completion,
            store.exports,
            store.deployment,
            store.runs,
            store.tasks,
            store.events,
            VolumeFiles(self.volume),
            FakeSink(),
            self.archive,
            FakeCatalogue(),
            [FakeNotifier()],
            store.sites.robots_of_run,
        )

    def ended(self, fence: Fence, *, files: bool = True) -> None:
        self.harness.execute(fence)
        self.harness.finish(fence, failed=[0])
        if files:
            folder = self.volume / files_path(fence.run, 0, fence.attempt)
            folder.mkdir(parents=True)
            (folder / "page.html").write_text(f"attempt {fence.attempt}")

    def export(self, fence: Fence) -> Any:
        return ActivityEnvironment().run(self.completion.export_supporting_files, fence)

    def tidied(self, fence: Fence) -> None:
        self.harness.clock.forward(20 * 86_400)
        before = self.harness.clock.now - timedelta(days=14)
        self.store.file_retention.give_up_files(
            fence.run_id, before, lambda: self.place.put_aside(fence.run)
        )
        self.place.remove(fence.run, fence.attempt)
        self.store.file_retention.note_files_removed(fence.run_id, fence.attempt)

    def stored(self, url: str) -> tuple[dict[str, bytes], list[str]]:
        """Return the files of an archive, and what its summary reports as missing."""
        opened = zipfile.ZipFile(io.BytesIO(b"".join(self.archive.open(url))))
        files = {name: opened.read(name) for name in opened.namelist()}
        skipped = json.loads(files.pop("manifest.json"))["skipped"]
        return files, [one["reason"] for one in skipped]

    def on_record(self, run_id: int) -> list[tuple[object, object, bool]]:
        return [
            (one["status"], one["url"], one["error"] is not None)
            for one in self.store.exports.list_exports(run_id)
        ]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    url = make_tables(f"sqlite:///{tmp_path}/runs.db")
    clock = Clock()
    store = open_store(url, clock=clock)
    (tmp_path / "volume" / "tasks").mkdir(parents=True)
    yield Scene(store, clock, tmp_path)
    store.close()


def test_a_second_export_does_not_replace_the_archive_by_an_empty_one(scene: Scene) -> None:
    fence = scene.harness.deployed()
    scene.ended(fence)
    url = scene.export(fence).url
    scene.tidied(fence)
    with pytest.raises(
        NotInThisState, match=r"files were removed .*; the archive stays as it was exported before"
    ):
        scene.export(fence)
    assert scene.stored(url) == ({"task-0/page.html": b"attempt 1"}, [])
    assert scene.on_record(fence.run_id) == [("exported", url, True)]


def test_a_run_that_left_nothing_still_has_nothing(scene: Scene) -> None:
    fence = scene.harness.deployed()
    scene.ended(fence, files=False)
    assert scene.export(fence) is None
    scene.tidied(fence)
    assert scene.export(fence) is None
    assert scene.on_record(fence.run_id) == [("empty", None, False)]


def test_after_a_resume_the_archive_has_what_is_there_and_tells_what_is_not(scene: Scene) -> None:
    first = scene.harness.deployed()
    scene.ended(first)
    former = scene.export(first).url
    scene.tidied(first)
    second = scene.harness.resume(first)
    scene.harness.deploy(second)
    scene.ended(second)
    found, missing = scene.stored(scene.export(second).url)
    assert found == {"task-0-attempt-2/page.html": b"attempt 2"}
    assert missing == [
        "its files were removed because they were exported long ago (crawlctl cluster gc)"
    ]
    assert scene.stored(former)[0] == {"task-0/page.html": b"attempt 1"}


def test_a_crawler_of_a_tidied_run_begins_at_the_beginning_and_says_so(scene: Scene) -> None:
    fence = scene.harness.deployed()
    scene.ended(fence)
    scene.export(fence)
    folder = scene.volume / state_path(fence.run, 0)
    folder.mkdir(parents=True)
    state = JobState(str(folder))
    state.open(resume=False)
    state.saved = True
    state.mark_clean({})
    assert state.open(resume=True) == (True, WENT_ON)
    state.mark_clean({})
    scene.tidied(fence)
    folder.mkdir(parents=True)  # as the kubelet makes it for the next pod
    assert JobState(str(folder)).open(resume=True) == (False, NO_STATE)

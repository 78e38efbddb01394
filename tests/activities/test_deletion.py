"""Deletion of a run under difficult conditions: odd folders, a read-only volume, bundles, restored
databases, two at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.deletion import DeletionActivities
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.adapters.archive.bundles import S3Bundles
from crawler_lifecycle.clusters.volume import TRASH, VolumePlace
from crawler_lifecycle.domain.audits.audit import OpenWorkflow
from crawler_lifecycle.domain.errors import Fenced, NotDelivered, RunDeleted
from crawler_lifecycle.domain.names import bundle_key, export_workflow_id
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.protocols import FilesPlace
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.contracts.store.harness import OWNER, Clock, Harness, opened
from tests.support.fakes.services import FakeArchive, FakeDirectory
from tests.support.s3 import moto_s3, use_aws


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    clock = Clock()
    with opened(f"sqlite:///{tmp_path / 'state.db'}", clock=clock) as store:
        yield Harness(store, clock)


@pytest.fixture
def fence(harness: Harness) -> Fence:
    """A run that has ended."""
    fence = harness.deployed()
    harness.finish(fence)
    return fence


@pytest.fixture
def volume(tmp_path: Path, fence: Fence) -> Path:
    """A volume with the files of the run and of another one."""
    root = tmp_path / "volume"
    for run in (fence.run, RunRef(99, "f" * 32)):
        files = root / "tasks" / str(run) / "0" / "1" / "files"
        files.mkdir(parents=True)
        (files / "items.jsonl").write_text("{}")
    return root


def deletion(
    harness: Harness, places: Sequence[FilesPlace] = (), archive: Any = None
) -> DeletionActivities:
    store = harness.store
    return DeletionActivities(
        store.deletion, store.runs, FakeDirectory(), archive or FakeArchive(), places
    )


def report(harness: Harness, fence: Fence) -> dict[str, Any]:
    row = harness.store.runs.get_run(fence.run_id)
    assert row is not None
    return {**(row.deletion or {}), "ended": row.deletion_ended_at is not None}


def remove(doing: DeletionActivities, run: RunRef) -> object:
    """Execute the last step of a deletion. Return whether an export may still be writing."""
    doing.deletion.note_deletion(run, {"Temporal histories": None}, {})
    return ActivityEnvironment().run(doing.delete_run_files, run)


def test_folders_with_anything_in_them(
    harness: Harness, fence: Fence, volume: Path, tmp_path: Path
) -> None:
    """Links are not followed, no file is opened, and folders without permissions are removed as
    well.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    files = volume / "tasks" / str(fence.run) / "0" / "1" / "files"
    (files / "to a file").symlink_to(outside / "kept")
    (files / "to a folder").symlink_to(outside)
    (files / "to nothing").symlink_to("nowhere")
    os.mkfifo(files / "fifo")
    (files / "a\nname\twith\x1b[31m").write_text("x")
    (files / os.fsdecode(b"no \xff utf-8")).mkdir()
    (files / "closed" / "below").mkdir(parents=True)
    (files / "closed" / "below" / "x").touch()
    (files / "closed").chmod(0)
    (volume / "state").symlink_to(outside)
    harness.store.deletion.ask_deletion(fence.run_id, "ada")
    remove(deletion(harness, [VolumePlace(volume)]), fence.run)
    assert [path.name for path in (volume / "tasks").iterdir()] == [f"99-{'f' * 32}"]
    assert list((volume / TRASH).iterdir()) == []
    assert (outside / "kept").read_text() == "kept"
    told = report(harness, fence)
    assert (told["left"], told["ended"]) == ({}, True)


def test_a_read_only_volume_is_told_and_keeps_nothing_else(
    harness: Harness, fence: Fence, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    archive = FakeArchive()
    archive.stored[f"memory:///{fence.run}/1.zip"] = b"x"  # type: ignore[assignment]
    doing = deletion(harness, [VolumePlace(volume)], archive)
    harness.store.deletion.ask_deletion(fence.run_id, "ada")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(NotDelivered, match="the report of the run explains why"):
            remove(doing, fence.run)
    told = report(harness, fence)
    assert "run it where the volume is mounted writable" in told["left"][f"files in {volume}"]
    assert (told["gone"].keys(), told["ended"]) == (
        {"archives", "rows", "Temporal histories"},
        False,
    )
    assert archive.stored == {}
    remove(doing, fence.run)
    told = report(harness, fence)
    assert (told["left"], told["ended"]) == ({}, True)
    assert not (volume / "tasks" / str(fence.run)).exists()


def test_bundles_go(harness: Harness, fence: Fence, monkeypatch: pytest.MonkeyPatch) -> None:
    with moto_s3() as server:
        use_aws(monkeypatch, server.url)
        bucket = server.bucket()
        others = bundle_key(RunRef(99, "f" * 32), 0, 1, "part-00000")
        for key in (
            bundle_key(fence.run, 0, 1, "part-00000"),
            bundle_key(fence.run, 1, 1, "bundle.json"),
            others,
        ):
            bucket.client.put_object(Bucket=bucket.name, Key=f"files/{key}", Body=b"x")
        harness.store.deletion.ask_deletion(fence.run_id, "ada")
        place = S3Bundles(f"s3://{bucket.name}/files/")
        remove(deletion(harness, [place]), fence.run)
        listed = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
        assert [one["Key"] for one in listed] == [f"files/{others}"]
        assert report(harness, fence)["gone"].keys() >= {f"files in {place.where}", "archives"}


def test_a_row_of_another_run_is_left_alone(harness: Harness, fence: Fence, volume: Path) -> None:
    """The database was restored during the deletion, and another run got the number."""
    doing, former = deletion(harness, [VolumePlace(volume)]), replace(fence.run, uid="e" * 32)
    theirs = OpenWorkflow("w", "chain", harness.clock.now, fence.run_id, fence.run_uid)
    doing.directory.workflows = [theirs]  # type: ignore[attr-defined]
    for step in (doing.delete_run_texts, doing.delete_run_histories, doing.delete_run_files):
        with pytest.raises(Fenced):
            ActivityEnvironment().run(step, former)
    assert doing.directory.workflows == [theirs]  # type: ignore[attr-defined]
    assert len(list((volume / "tasks").iterdir())) == 2


def test_a_copy_from_before_the_deletion_is_deleted_again(
    harness: Harness, fence: Fence, volume: Path
) -> None:
    """Only the row has returned. The deletion is requested again, and finds nothing left to delete."""
    VolumePlace(volume).put_aside(fence.run)
    doing = deletion(harness, [VolumePlace(volume)])
    harness.store.deletion.ask_deletion(fence.run_id, "ada")
    ActivityEnvironment().run(doing.delete_run_texts, fence.run)
    remove(doing, fence.run)
    assert report(harness, fence)["ended"]


def test_two_ask_and_two_delete_at_once(harness: Harness, fence: Fence, volume: Path) -> None:
    doing = deletion(harness, [VolumePlace(volume)])
    with ThreadPoolExecutor(4) as threads:
        asked = list(
            threads.map(lambda who: harness.store.deletion.ask_deletion(fence.run_id, who), "abcd")
        )
        list(threads.map(lambda _: remove(doing, fence.run), range(4)))
    assert sorted(fresh for _, fresh in asked) == [False, False, False, True]
    told = report(harness, fence)
    assert (told["left"], told["ended"]) == ({}, True)


def test_an_export_in_the_middle_leaves_no_archive_behind(
    harness: Harness, fence: Fence, tmp_path: Path
) -> None:
    """A deletion that is requested during an export prevents its record, and removes what it has
    stored.
    """
    folder, archive = tmp_path / "files", open_archive((tmp_path / "archive").as_uri())
    folder.mkdir()
    (folder / "items.jsonl").write_text("{}")
    harness.store.exports.begin_export(fence)
    harness.store.deletion.ask_deletion(fence.run_id, "ada")
    stored = archive.store(
        f"{fence.run}/1.zip", [FileSource("task-0", folder)], {}, lambda *_: None
    )
    with pytest.raises(RunDeleted):
        harness.store.exports.record_export(fence, "exported", stored, None)
    remove(deletion(harness, (), archive), fence.run)
    assert list((tmp_path / "archive").iterdir()) == []


@pytest.mark.parametrize(
    "workflow_id", [OWNER.workflow_id, export_workflow_id(RunRef(1, "0" * 32), 1)]
)
def test_files_go_before_histories_and_an_open_export_is_told(
    harness: Harness, fence: Fence, workflow_id: str
) -> None:
    """The step is executed twice. It completes the deletion only after the histories were deleted."""
    doing, files = deletion(harness), DeletionActivities.delete_run_files
    workflow_id = workflow_id.replace("0" * 32, fence.run_uid)
    doing.directory.open = [Owner(workflow_id, "chain")]  # type: ignore[attr-defined]
    harness.store.deletion.ask_deletion(fence.run_id, "ada")
    assert ActivityEnvironment().run(files, doing, fence.run) is True
    assert report(harness, fence)["ended"] is False
    doing.directory.open = []  # type: ignore[attr-defined]
    assert remove(doing, fence.run) is False
    assert report(harness, fence)["ended"] is True

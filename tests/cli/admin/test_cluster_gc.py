"""``crawlctl cluster gc`` first lists, then removes what is old and exported, and keeps everything
else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.clusters.kubernetes.files.layout import files_path, state_path
from crawler_lifecycle.clusters.volume import VolumePlace
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.retention.file_retention import FileRetentionStore
from crawler_lifecycle.store.store import Store, open_store
from tests.cli.cli_support import NOW, Crawlctl, Result
from tests.contracts.store.harness import Clock, Harness
from tests.support.databases import make_tables
from tests.support.run_refs import run_ref
from tests.support.s3 import Bucket, S3Server
from tests.support.s3_faults import Fault, FaultProxy


class Fleet:
    """Runs in a database, and their files on a volume."""

    def __init__(self, store: Store, clock: Clock, volume: Path) -> None:
        self.store, self.volume = store, volume
        self.harness = Harness(store, clock)
        self.count = 0

    def run(
        self,
        *,
        days: float,
        export: str | None = "exported",
        note: str | None = None,
        live: bool = False,
    ) -> int:
        """A run that ended this number of days ago, and its files."""
        self.count += 1
        self.harness.clock.now = NOW - timedelta(days=days)
        fence = self.harness.deployed(f"r{self.count}")
        self.harness.execute(fence)
        if not live:
            self.harness.finish(fence, failed=[0])
        if export is not None and not live:
            result = (
                ExportResult("file:///archive.zip", 1, 1, "0" * 64, None)
                if export == "exported"
                else None
            )
            self.store.exports.record_export(fence, export, result, note)
        self.leave(str(fence.run))
        self.harness.clock.now = NOW
        return fence.run_id

    def leave(self, name: object) -> None:
        zero = run_ref(1)
        files = self.volume / str(files_path(zero, 0, 1)).replace(str(zero), str(name))
        state = self.volume / str(state_path(zero, 0)).replace(str(zero), str(name))
        for folder in (files, state):
            folder.mkdir(parents=True)
            (folder / "file").write_text("x")

    def there(self) -> set[str]:
        """Return the runs that still have files, and other names with files."""
        lies = [
            path.relative_to(self.volume).parts for path in self.volume.rglob("*") if path.is_file()
        ]
        found = {parts[1]: RunRef.named(parts[1]) for parts in lies}
        return {name if ref is None else str(ref.run_id) for name, ref in found.items()}

    def fence(self, run_id: int, attempt: int = 1) -> Fence:
        row = self.store.runs.get_run(run_id)
        assert row is not None
        return Fence(run_id, attempt, "chain-1", row.run_uid)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    url = make_tables(f"sqlite:///{tmp_path}/runs.db")
    clock = Clock()
    store = open_store(url, clock=clock)
    (tmp_path / "volume" / "tasks").mkdir(parents=True)
    yield Fleet(store, clock, tmp_path / "volume")
    store.close()


@pytest.fixture
def tidy(crawlctl: Crawlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {
        "CLUSTER__KIND": "kubernetes",
        "CLUSTER__VOLUME_PATH": str(tmp_path / "volume"),
        "DATABASE__URL": f"sqlite:///{tmp_path}/runs.db",
    }.items():
        monkeypatch.setenv(f"LIFECYCLE_{name}", value)

    def call(*words: str) -> Result:
        return crawlctl("cluster", "gc", *words)

    return call


def states(result: Result) -> dict[str, str]:
    """Return the states by the number of the run, or by name if that is no run's."""
    return {str(row["run_id"] or row["name"]): row["state"] for row in result.json["runs"]}


def test_without_yes_it_tells_and_changes_nothing(fleet: Fleet, tidy: Any) -> None:
    old, recent, failed = (
        fleet.run(days=20),
        fleet.run(days=2),
        fleet.run(days=20, export="failed", note="no bucket"),
    )
    fleet.leave("999")
    before = fleet.there()
    done = tidy()
    assert done.code == Exit.DONE
    assert fleet.there() == before
    assert fleet.store.runs.properties(old) == []
    head, *lines = [line.split() for line in done.out.splitlines()]
    assert head == ["RUN", "CRAWLER", "ENDED", "STATE", "WHY", "REMOVAL"]
    assert [line[0] for line in lines] == [str(old), str(failed), "999"], (
        f"{recent} is only counted"
    )
    assert "no bucket" in done.out
    assert "found 4 runs: 1 old, 1 recent, 1 not exported, 1 unknown" in done.err
    assert "nothing was changed\nnext: crawlctl cluster gc --yes" in done.err


def test_files_of_another_run_of_the_same_number_are_told_and_stay(fleet: Fleet, tidy: Any) -> None:
    """A restored database assigned the number again: the files belong to the earlier run."""
    old = fleet.run(days=20)
    fleet.leave(other := str(run_ref(old)))
    done = tidy("--yes", "-o", "json")
    found = {row["name"]: (row["state"], row["why"], row["removed"]) for row in done.json["runs"]}
    assert found.pop(other) == ("unknown", "the database has another run with this number", False)
    assert list(found.values()) == [("old", "exported", True)]
    assert (fleet.volume / "tasks" / other).is_dir()
    assert (fleet.volume / "state" / other).is_dir()


def test_how_it_looks(fleet: Fleet, tidy: Any, snapshot: SnapshotAssertion) -> None:
    for days, options in ((20, {}), (400, {"export": "empty"}), (2, {}), (20, {"export": None})):
        fleet.run(days=days, **options)  # type: ignore[arg-type]
    fleet.run(days=30, note="3 files were left out: more than 100,000")
    fleet.run(days=30, live=True)
    fleet.leave("lost+found")
    listed, done = tidy(), tidy("--yes")
    assert f"{listed.out}{listed.err}" == snapshot(name="listed")
    assert f"{done.out}{done.err}" == snapshot(name="done")


def test_it_removes_what_is_old_and_keeps_everything_else(fleet: Fleet, tidy: Any) -> None:
    old, empty = fleet.run(days=15), fleet.run(days=400, export="empty")
    kept = {
        fleet.run(days=13): "recent",
        fleet.run(days=100, live=True): "live",
        fleet.run(days=20, export=None): "not exported",
        fleet.run(days=20, note="3 files were left out"): "archive incomplete",
    }
    for name in ("999", "007", "lost+found", "99999999999999999999"):
        fleet.leave(name)
    done = tidy("--yes", "-o", "json")
    assert done.code == Exit.DONE
    unknown = dict.fromkeys(("999", "007", "lost+found", "99999999999999999999"), "unknown")
    assert states(done) == {
        str(old): "old",
        str(empty): "old",
        **{str(k): v for k, v in kept.items()},
        **unknown,
    }
    assert (done.json["removed"], done.json["failed"]) == (2, 0)
    assert [row["run_id"] for row in done.json["runs"] if row["removed"]] == [old, empty]
    assert fleet.there() == {*map(str, kept), *unknown}
    again = tidy("--yes", "-o", "json")
    assert (again.code, again.json["removed"]) == (Exit.DONE, 0)


def test_options(fleet: Fleet, tidy: Any) -> None:
    incomplete, younger = fleet.run(days=20, note="3 files were left out"), fleet.run(days=2)
    assert states(tidy("--older-than", "36h", "-o", "json"))[str(younger)] == "old"
    told = tidy("--older-than", "36h", "--incomplete")
    assert "next: crawlctl cluster gc --older-than 36h --incomplete --yes" in told.err
    assert tidy("-o", "name", "--incomplete").out.split() == [str(fleet.fence(incomplete).run)]
    assert tidy("--incomplete", "--yes").code == Exit.DONE
    assert fleet.there() == {str(younger)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("11h", "--older-than '11h' is too short"),
        ("0", "too short"),
        ("soon", "'soon' is not a duration"),
        ("9999999d", "--older-than '9999999d' is too long"),
    ],
)
def test_a_wrong_age(fleet: Fleet, tidy: Any, text: str, said: str) -> None:
    done = tidy("--older-than", text, "--yes")
    assert done.code == Exit.USAGE
    assert said in done.err


def test_nothing_is_there(fleet: Fleet, tidy: Any) -> None:
    done = tidy("--yes")
    assert done.code == Exit.DONE
    assert done.err.splitlines() == [
        "no run has left files for longer than 14 d",
        "found 0 runs",
        "removed 0, failed 0",
    ]


def test_a_run_that_is_resumed_in_this_moment_is_kept(
    fleet: Fleet, tidy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = fleet.run(days=20)
    really = FileRetentionStore.give_up_files

    def resumed_before(self: FileRetentionStore, *given: Any, **options: Any) -> Any:
        fleet.harness.resume(fleet.fence(run_id))
        return really(self, *given, **options)

    monkeypatch.setattr(FileRetentionStore, "give_up_files", resumed_before)
    done = tidy("--yes", "-o", "json")
    assert done.code == Exit.DONE
    assert (states(done)[str(run_id)], done.json["removed"]) == ("live", 0)
    assert fleet.there() == {str(run_id)}


def test_two_at_once_remove_everything_once(
    fleet: Fleet, tidy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second command begins when the first has moved a run away."""
    runs = [fleet.run(days=20) for _ in range(3)]
    really, codes = VolumePlace.remove, list[int]()

    def also(self: VolumePlace, run: RunRef, attempt: int) -> None:
        monkeypatch.setattr(VolumePlace, "remove", really)
        codes.append(tidy("--yes", "-o", "json").code)
        really(self, run, attempt)

    monkeypatch.setattr(VolumePlace, "remove", also)
    done = tidy("--yes", "-o", "json")
    assert (done.code, codes) == (Exit.DONE, [Exit.DONE])
    assert done.json["failed"] == 0
    assert fleet.there() == set()
    values = [str(one["value"]) for run_id in runs for one in fleet.store.runs.properties(run_id)]
    assert [value.split()[0] for value in values] == ["done"] * 3


def test_one_that_was_killed_is_ended_by_the_next(
    fleet: Fleet, tidy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    run_id = fleet.run(days=20)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(VolumePlace, "remove", killed)
        with pytest.raises(Killed):
            tidy("--yes")
    assert fleet.there() != set()
    assert fleet.store.exports.begin_export(fleet.fence(run_id)) == 1, (
        "nobody reads what is half gone"
    )
    assert tidy("--yes").code == Exit.DONE
    assert fleet.there() == set()


def test_what_cannot_be_removed_is_told_and_does_not_keep_the_others(
    fleet: Fleet, tidy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = fleet.run(days=20), fleet.run(days=20)
    really = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == str(fleet.fence(first).run):
            raise OSError(5, "Input/output error")
        return really(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    done = tidy("--yes", "-o", "json")
    assert done.code == Exit.ERROR
    assert (done.json["removed"], done.json["failed"]) == (1, 1)
    assert "Input/output error" in next(
        row["trouble"] for row in done.json["runs"] if row["run_id"] == first
    )
    assert fleet.there() == {str(first)}, second
    assert fleet.store.runs.properties(first) == [], "nothing was given up"


def test_nothing_is_mounted(fleet: Fleet, tidy: Any) -> None:
    (fleet.volume / "tasks").rmdir()
    done = tidy("--yes")
    assert done.code == Exit.UNREACHABLE
    assert "holds no folder 'tasks' and nothing is mounted there" in done.err
    assert "mount the volume that crawl pods write to" in done.err


def test_no_database_no_removal(
    fleet: Fleet, tidy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the database, every run would be unknown."""
    fleet.run(days=20)
    monkeypatch.setenv("LIFECYCLE_DATABASE__URL", f"sqlite:///{tmp_path}/other.db")
    done = tidy("--yes")
    assert done.code == Exit.UNREACHABLE
    assert "the database cannot be used" in done.err
    assert len(fleet.there()) == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CLUSTER__KIND", "local", "crawlctl cluster gc only removes files of crawl pods"),
        (
            "CLUSTER__VOLUME_PATH",
            None,
            "LIFECYCLE_CLUSTER__VOLUME_PATH, LIFECYCLE_CLUSTER__FILES_URL: neither is set",
        ),
        (
            "CLUSTER__FILES_URL",
            "file:///x",
            "LIFECYCLE_CLUSTER__FILES_URL: 'file:///x' is not allowed",
        ),
        ("DATABASE__URL", "oracle://x", "no usable database"),
    ],
)
def test_a_wrong_setting(
    fleet: Fleet,
    tidy: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str | None,
    said: str,
) -> None:
    if value is None:
        monkeypatch.delenv(f"LIFECYCLE_{name}")
    else:
        monkeypatch.setenv(f"LIFECYCLE_{name}", value)
    done = tidy("--yes")
    assert done.code == Exit.USAGE
    assert said in done.err


# --- object storage -------------------------------------------------------------------------------


@pytest.fixture
def bucket(server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = server.bucket()
    monkeypatch.setenv("LIFECYCLE_CLUSTER__FILES_URL", f"s3://{made.name}/tasks")
    return made


def upload(bucket: Bucket, name: object) -> list[str]:
    keys = [f"tasks/{name}/0/1/{one}" for one in ("part-00000", "bundle.json")]
    for key in keys:
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=b"x")
    return sorted(keys)


def test_bucket_and_volume_together(fleet: Fleet, tidy: Any, bucket: Bucket) -> None:
    old, recent = fleet.run(days=20), fleet.run(days=2)
    upload(bucket, fleet.fence(old).run)
    kept = sorted(upload(bucket, fleet.fence(recent).run) + upload(bucket, 999))
    done = tidy("--yes", "-o", "json")
    assert (done.code, done.json["removed"]) == (Exit.DONE, 1)
    assert states(done) == {str(old): "old", str(recent): "recent", "999": "unknown"}
    (row,) = [row for row in done.json["runs"] if row["run_id"] == old]
    assert row["where"] == [f"s3://{bucket.name}/tasks/", str(fleet.volume)]
    assert bucket.keys() == kept
    assert fleet.there() == {str(recent)}


def test_the_bucket_refuses(fleet: Fleet, tidy: Any, bucket: Bucket, proxy: FaultProxy) -> None:
    old = fleet.run(days=20)
    upload(bucket, fleet.fence(old).run)
    proxy.faults = [Fault("status", "DeleteObject", times=99)]
    done = tidy("--yes", "-o", "json")
    assert (done.code, done.json["failed"]) == (Exit.ERROR, 1)
    assert "removing an object: AccessDenied" in done.json["runs"][0]["trouble"]
    proxy.calm()
    assert tidy("--yes", "-o", "json").json["removed"] == 1
    assert bucket.keys() == []
    proxy.faults = [Fault("status", "GET bucket", times=99)]
    done = tidy("--yes")
    assert done.code == Exit.UNREACHABLE
    assert "cannot be listed" in done.err


def test_a_stop_in_the_middle_leaves_nothing_half(
    fleet: Fleet, tidy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that begins while a run is being removed finds it complete or removed."""
    run_id, seen = fleet.run(days=20), list[int]()
    really = VolumePlace.put_aside

    def put_aside(self: VolumePlace, which: RunRef) -> None:
        asking = threading.Thread(
            target=lambda: seen.append(fleet.store.exports.begin_export(fleet.fence(run_id)))
        )
        asking.start()
        asking.join(0.3)
        assert seen == [], "it waits"
        really(self, which)
        threads.append(asking)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(VolumePlace, "put_aside", put_aside)
    assert tidy("--yes").code == Exit.DONE
    for thread in threads:
        thread.join(60)
    assert seen == [1]

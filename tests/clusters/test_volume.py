"""Clearing a shared volume removes whole runs and nothing else, whatever crawlers left and whoever
else is clearing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crawler_lifecycle.clusters import volume
from crawler_lifecycle.clusters.kubernetes.files.layout import files_path, state_path
from crawler_lifecycle.clusters.kubernetes.files.sources import VolumeFiles
from crawler_lifecycle.clusters.volume import ASIDE, TRASH, VolumePlace
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.ports.runs import TaskRef
from tests.support.folders import reachable_folder
from tests.support.run_refs import run_ref

SEVEN = str(run_ref(7))


def left(root: Path, run_id: int, *, tasks: int = 2, attempt: int = 1) -> None:
    """Write the files that a run leaves on the volume."""
    for index in range(tasks):
        files, state = (
            root / files_path(run_ref(run_id), index, attempt),
            root / state_path(run_ref(run_id), index),
        )
        (files / "sub").mkdir(parents=True)
        (files / "sub" / "page.html").write_text("x")
        (state / "job").mkdir(parents=True, exist_ok=True)
        (state / "job" / "requests.queue").write_text("x")
        (state / "clean-stop.json").write_text("{}")


def clear(place: VolumePlace, run_id: int, attempt: int = 1) -> None:
    place.put_aside(run_ref(run_id))
    place.remove(run_ref(run_id), attempt)
    assert place.finish() == []


def before_renames(monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object]) -> None:
    """``act`` is called with each path that is about to be renamed."""
    really = Path.rename

    def rename(self: Path, target: Path) -> Path:
        act(self)
        return really(self, target)

    monkeypatch.setattr(Path, "rename", rename)


def no_whole_runs(path: Path) -> None:
    """Make it impossible to move the folders of runs."""
    if path.name == SEVEN:
        raise PermissionError(13, "Permission denied")


def everything(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if not path.is_dir() or path.is_symlink()
    )


@pytest.fixture
def place(tmp_path: Path) -> VolumePlace:
    (tmp_path / "tasks").mkdir()
    return VolumePlace(tmp_path)


def test_it_finds_runs_and_whatever_else_lies_there(place: VolumePlace, tmp_path: Path) -> None:
    left(tmp_path, 7)
    (tmp_path / "state" / "9").mkdir()
    (tmp_path / "tasks" / "lost+found").mkdir()
    (tmp_path / "tasks" / "a file").write_text("")
    (tmp_path / "tasks" / "link").symlink_to("/")
    assert place.runs() == {SEVEN, "9", "lost+found"}


def test_one_run_goes_and_the_others_stay(place: VolumePlace, tmp_path: Path) -> None:
    left(tmp_path, 7)
    left(tmp_path, 70)
    before = [name for name in everything(tmp_path) if f"/{run_ref(70)}/" in name]
    clear(place, 7)
    assert everything(tmp_path) == before
    assert place.runs() == {str(run_ref(70))}
    clear(place, 7)
    assert everything(tmp_path) == before


def test_put_aside_is_at_once_and_for_whoever_comes_next(
    place: VolumePlace, tmp_path: Path
) -> None:
    left(tmp_path, 7)
    place.put_aside(run_ref(7))
    assert not (tmp_path / state_path(run_ref(7), 0)).exists()
    assert place.runs() == set()
    assert VolumePlace(tmp_path).finish() == [], "the call that put it aside was killed"
    assert everything(tmp_path) == []


def test_a_later_attempt_stays(place: VolumePlace, tmp_path: Path) -> None:
    """The run was resumed during the removal."""
    left(tmp_path, 7)
    place.put_aside(run_ref(7))
    left(tmp_path, 7, tasks=1, attempt=2)
    place.remove(run_ref(7), 1)
    assert everything(tmp_path) == [
        f"state/{SEVEN}/0/clean-stop.json",
        f"state/{SEVEN}/0/job/requests.queue",
        f"tasks/{SEVEN}/0/2/files/sub/page.html",
    ]


@pytest.mark.parametrize("movable", [True, False])
def test_a_resume_finds_its_folders_however_empty_they_are(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, movable: bool
) -> None:
    """A removal takes minutes.

    The pod of the next attempt has mounted folders that are still empty.
    """
    left(tmp_path, 7)
    mounted = [tmp_path / files_path(run_ref(7), 0, 2), tmp_path / state_path(run_ref(7), 0)]
    remove = volume._remove

    def resumed(folder: Path) -> None:
        remove(folder)
        for one in mounted:
            one.mkdir(parents=True, exist_ok=True)

    if not movable:
        before_renames(monkeypatch, no_whole_runs)
    monkeypatch.setattr(volume, "_remove", resumed)
    place.put_aside(run_ref(7))
    assert movable or (tmp_path / state_path(run_ref(7), 0)).is_dir()
    place.remove(run_ref(7), 1)
    assert all(one.is_dir() for one in mounted)
    assert everything(tmp_path) == []
    assert not (tmp_path / files_path(run_ref(7), 0, 1).parent).exists()


def test_links_are_removed_and_not_followed(place: VolumePlace, tmp_path: Path) -> None:
    left(tmp_path, 7)
    left(tmp_path, 8)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (precious / "0" / "1").mkdir(parents=True)
    (tmp_path / files_path(run_ref(7), 0, 1) / "link").symlink_to(precious)
    (tmp_path / files_path(run_ref(7), 0, 1) / "other").symlink_to(tmp_path / "tasks" / "8")
    (tmp_path / "tasks" / "9").symlink_to(precious)
    clear(place, 7)
    clear(place, 9)
    assert (precious / "file").exists()
    assert (precious / "0" / "1").exists()
    assert (tmp_path / files_path(run_ref(8), 0, 1) / "sub/page.html").exists()
    assert not (tmp_path / "tasks" / SEVEN).exists()


def test_two_at_once(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for run_id in range(1, 21):
        left(tmp_path, run_id)
    start = threading.Barrier(4)

    def work(mine: VolumePlace) -> None:
        start.wait()
        for run_id in range(1, 21):
            clear(mine, run_id)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, [VolumePlace(tmp_path) for _ in range(4)]))
    assert everything(tmp_path) == []


def test_the_trash_is_emptied_while_a_run_is_put_aside(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call empties it at any moment: the run is moved away, and nothing fails."""
    left(tmp_path, 7)
    make, troubles = Path.mkdir, list[str]()

    def mkdir(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        make(self, mode, parents, exist_ok)
        troubles.extend(VolumePlace(tmp_path).finish())

    monkeypatch.setattr(Path, "mkdir", mkdir)
    before_renames(monkeypatch, lambda _: troubles.extend(VolumePlace(tmp_path).finish()))
    place.put_aside(run_ref(7))
    assert (place.runs(), troubles) == (set(), [])


def test_two_hide_the_same_state(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where folders cannot be moved as a whole, another call may take any name first, and remove it
    at once.
    """
    left(tmp_path, 7)
    really = Path.rename
    others = iter([True, False, True])  # at the first and the third name that we take

    def rename(self: Path, target: Path) -> Path:
        if self.name == SEVEN:
            raise PermissionError(13, "Permission denied")
        if next(others, False):
            really(self, self.with_name(f"{ASIDE}other"))
            VolumePlace(tmp_path).remove(run_ref(7), 1)
        return really(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    place.put_aside(run_ref(7))
    assert not [
        name for name in everything(tmp_path) if name.startswith("state") and ASIDE not in name
    ]


def test_the_trash_itself_is_removed_while_a_run_is_put_aside(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who needs space removes it. The run still exists then, and is moved away in the end."""
    left(tmp_path, 7)
    people = iter([True, False, True])
    before_renames(monkeypatch, lambda _: next(people, False) and shutil.rmtree(tmp_path / TRASH))
    place.put_aside(run_ref(7))
    assert place.runs() == set()


def test_files_that_another_call_removes_are_not_somebody_elses(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where folders cannot be moved, files may disappear before their permissions are changed."""
    left(tmp_path, 7)
    may = os.access

    def access(path: Path, mode: int) -> bool:
        shutil.rmtree(path)
        return may(path, mode)

    before_renames(monkeypatch, no_whole_runs)
    monkeypatch.setattr(os, "access", access)
    place.put_aside(run_ref(7))
    assert not (tmp_path / files_path(run_ref(7), 0, 1)).exists()


# --- rights ---------------------------------------------------------------------------------------

only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become the user of crawl pods"
)

AS_CRAWLS = f"""
import os, sys
from collections.abc import Callable, Iterator
from pathlib import Path
from crawler_lifecycle.clusters.volume import VolumePlace
from crawler_lifecycle.domain.run_ref import RunRef
os.setgroups([]); os.setgid(1000); os.setuid(1000)
place = VolumePlace(Path(sys.argv[1]))
place.put_aside(RunRef(7, {run_ref(7).uid!r}))
print((Path(sys.argv[1]) / "state/{SEVEN}/0/clean-stop.json").exists())
place.remove(RunRef(7, {run_ref(7).uid!r}), 1)
print(place.finish())
"""


def as_crawls(root: Path) -> subprocess.CompletedProcess[str]:
    """Clear run 7 as the user of crawl pods."""
    words = [sys.executable, "-c", AS_CRAWLS, str(root)]
    return subprocess.run(words, capture_output=True, text=True, timeout=150)


def owned(root: Path, user: int, *tops: str) -> None:
    for top in tops:
        for path in (root / top, *(root / top).rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)


@pytest.fixture
def volume_of_crawls() -> Iterator[Path]:
    """A volume that belongs to another user, in a place that everybody can reach."""
    with reachable_folder() as root:
        (root / "tasks").mkdir()
        left(root, 7)
        yield root


@only_root
def test_what_a_crawler_closed_to_itself_goes_all_the_same(volume_of_crawls: Path) -> None:
    closed = volume_of_crawls / files_path(run_ref(7), 0, 1) / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "inner" / "file").write_text("x")
    owned(volume_of_crawls, 1000, ".")
    (closed / "inner").chmod(0)
    closed.chmod(0)
    done = as_crawls(volume_of_crawls)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "[]"]), done.stderr
    assert sorted(path.name for path in volume_of_crawls.rglob("*")) == ["state", "tasks", "trash"]


@only_root
def test_where_the_folders_above_are_roots_their_content_goes(volume_of_crawls: Path) -> None:
    owned(
        volume_of_crawls,
        1000,
        *(
            f"{top}/{SEVEN}/{n}{rest}"
            for n in "01"
            for top, rest in (("tasks", "/1/files"), ("state", ""))
        ),
    )
    done = as_crawls(volume_of_crawls)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "[]"]), done.stderr
    assert everything(volume_of_crawls) == []
    assert (volume_of_crawls / f"tasks/{SEVEN}/0/1/files").is_dir(), "empty, and for root to remove"
    clear(VolumePlace(volume_of_crawls), 7)
    assert VolumePlace(volume_of_crawls).runs() == set()


@only_root
@pytest.mark.parametrize("saved", [True, False])
def test_what_belongs_to_others_is_told_with_the_fix(volume_of_crawls: Path, saved: bool) -> None:
    """The error comes before anything is removed."""
    if not saved:
        shutil.rmtree(volume_of_crawls / "state")
    before = everything(volume_of_crawls)
    done = as_crawls(volume_of_crawls)
    assert (done.returncode, done.stdout) == (1, ""), "it does not come to the removal"
    assert "Permission denied; run it where the volume is mounted writable" in done.stderr
    assert everything(volume_of_crawls) == before


def test_half_hidden_state_is_never_trusted(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of a clean stop is removed first."""
    left(tmp_path, 7, tasks=1)
    seen: list[str] = []
    before_renames(monkeypatch, lambda path: (no_whole_runs(path), seen.append(path.name)))
    place.put_aside(run_ref(7))
    assert seen == ["clean-stop.json", "job"]
    (aside,) = (tmp_path / state_path(run_ref(7), 0)).iterdir()
    assert aside.name.startswith(ASIDE)
    place.remove(run_ref(7), 1)
    assert everything(tmp_path) == []


# --- outages --------------------------------------------------------------------------------------


def test_nothing_is_mounted(tmp_path: Path) -> None:
    with pytest.raises(
        ClusterUnavailable, match="holds no folder 'tasks' and nothing is mounted there"
    ):
        VolumePlace(tmp_path).runs()
    with pytest.raises(ClusterUnavailable, match="cannot be read"):
        VolumePlace(tmp_path / "away").runs()


def unmounted(root: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """From the next such call on, the volume is missing, and the folder below its mount point is
    there.
    """
    really = getattr(volume, what)

    def goes(*given: object) -> object:
        if (root / "tasks").exists():
            root.rename(root.with_name("elsewhere"))
            root.mkdir()
        return really(*given)

    monkeypatch.setattr(volume, what, goes)


@pytest.mark.parametrize("step", ["runs", "put_aside", "remove"])
def test_the_volume_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What is missing then was not removed by anybody, and nothing is recorded as removed."""
    root = tmp_path / "volume"
    (root / "tasks").mkdir(parents=True)
    left(root, 7)
    place = VolumePlace(root)
    calls: dict[str, Callable[[], object]] = {
        "runs": place.runs,
        "put_aside": lambda: place.put_aside(run_ref(7)),
        "remove": lambda: place.remove(run_ref(7), 1),
    }
    unmounted(root, monkeypatch, "_is_folder" if step == "put_aside" else "_folders")
    with pytest.raises(
        ClusterUnavailable, match="holds no folder 'tasks' and nothing is mounted there"
    ):
        calls[step]()
    assert len(everything(root.with_name("elsewhere"))) == 6


def test_the_volume_goes_while_an_export_asks_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive without files would count as complete."""
    root = tmp_path / "volume"
    (root / "tasks").mkdir(parents=True)
    left(root, 7)
    really = Path.stat

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if not follow_symlinks and (root / "tasks").exists():
            root.rename(root.with_name("elsewhere"))
            root.mkdir()
        return really(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(
        ClusterUnavailable, match="holds no folder 'tasks' and nothing is mounted there"
    ):
        VolumeFiles(root).files(run_ref(7), [TaskRef(70, 0, 1, "uid")])


def refuse(*_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system")


def test_a_volume_that_becomes_read_only(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even permissions can be changed then."""
    left(tmp_path, 7)
    place.put_aside(run_ref(7))
    monkeypatch.setattr(Path, "chmod", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    troubles = place.finish()
    assert len(troubles) == 2
    assert all("Read-only file system" in trouble for trouble in troubles)


def test_a_volume_that_is_mounted_read_only(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(tmp_path, 7)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        ClusterUnavailable,
        match="Read-only file system; run it where the volume is mounted writable",
    ):
        place.put_aside(run_ref(7))


def test_what_cannot_be_removed_is_told_and_left_for_the_next(
    place: VolumePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(tmp_path, 7)
    place.put_aside(run_ref(7))
    monkeypatch.setattr(
        volume, "_remove_tree", lambda folder: [(folder, OSError(5, "Input/output error"))]
    )
    with pytest.raises(ClusterUnavailable, match="Input/output error"):
        place.remove(run_ref(7), 1)
    troubles = place.finish()
    assert len(troubles) == 2
    assert all("Input/output error" in trouble for trouble in troubles)
    monkeypatch.undo()
    assert place.finish() == []
    assert list((tmp_path / TRASH).iterdir()) == []

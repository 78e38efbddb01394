"""What wakes those who wait for arrivals, and what does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.folders.arrivals import Arrivals

#: A test that waits this long has failed.
LONG_S = 60.0


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return tmp_path / "first", tmp_path / "second"


@pytest.fixture
def arrivals(folders: tuple[Path, Path]) -> Iterator[Arrivals]:
    with closing(Arrivals(*folders)) as made:
        made.renew()
        yield made


def put(folder: Path, name: str = "one") -> None:
    (folder / f"{name}.tmp").touch()
    os.rename(folder / f"{name}.tmp", folder / name)


def test_only_what_is_moved_in_wakes(arrivals: Arrivals, folders: tuple[Path, Path]) -> None:
    for folder in folders:
        (folder / "half").write_text("not whole yet")
        assert not arrivals.wait(0)
        put(folder)
        assert arrivals.wait(LONG_S)
        (folder / "one").unlink()
        assert not arrivals.wait(0)


def test_what_arrives_before_the_wait_is_not_missed(
    arrivals: Arrivals, folders: tuple[Path, Path]
) -> None:
    put(folders[0])
    arrivals.renew()
    assert arrivals.wait(0)
    assert not arrivals.wait(0)


def test_a_folder_that_was_replaced_is_watched_after_a_renewal(
    arrivals: Arrivals, folders: tuple[Path, Path]
) -> None:
    os.rename(folders[1], folders[1].with_name("away"))
    folders[1].mkdir()
    put(folders[1], "unseen")
    assert not arrivals.wait(0)
    arrivals.renew()
    put(folders[1])
    assert arrivals.wait(LONG_S)


def test_a_folder_that_is_missing_is_told_by_nothing_until_it_is_back(
    arrivals: Arrivals, folders: tuple[Path, Path]
) -> None:
    folders[1].rmdir()
    arrivals.renew()
    arrivals.wait(0)  # the kernel reports that it no longer watches the old one
    assert arrivals.wait(0), "something may have arrived"
    folders[1].mkdir()
    arrivals.renew()
    assert not arrivals.wait(0)
    put(folders[1])
    assert arrivals.wait(LONG_S)


def test_a_queue_that_overflows_wakes_and_works_again(
    arrivals: Arrivals, folders: tuple[Path, Path]
) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"the queue holds {most} notices here")
    for number in range(most + 10):
        put(folders[number % 2])
    assert arrivals.wait(0)
    while arrivals.wait(0):
        pass
    put(folders[0])
    assert arrivals.wait(LONG_S)

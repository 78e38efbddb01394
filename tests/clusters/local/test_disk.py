"""A crawler that fills the disk: its end is on record, with this reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.folders.folder import EndReserve
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.task import TaskStatus, read_end
from tests.clusters.local.local_fixture import Fixture
from tests.support.disks import small_disk

#: Prints and writes until the disk is full, counting all the time, and then fails.
FILLS = """
import json, os, sys, time
with open(os.environ["CRAWL_STATS_FILE"], "w") as file:
    json.dump({"pages": 4}, file)
time.sleep(1.5)
full = 0
with open(os.environ["CRAWL_FILES_DIR"] + "/pages", "wb", buffering=0) as file:
    while full < 3:
        try:
            file.write(b"x" * 512 if full else b"x" * 65536)
        except OSError:
            full += 1
with open(os.environ["CRAWL_STATS_FILE"], "r+") as file:
    json.dump({"pages": 5}, file)
time.sleep(1.5)
sys.exit(1)
"""


def test_a_full_disk_keeps_the_evidence(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        fixture = Fixture(disk, cgroup_setting="off")
        try:
            fixture.deploy(FILLS)
            seen = fixture.until_on_file()
            assert (seen.end.exit_code, seen.end.reason) == (3, "Error")
            ending = read_end(seen.end)
            assert (ending.status, ending.outcome) == (TaskStatus.FAILED, "diskusage_exceeded")
            assert not (fixture.folder() / "end.room").exists()
        finally:
            (fixture.folder() / "files/pages").unlink(missing_ok=True)
            fixture.close()


def test_a_supervisor_that_cannot_say_why_it_did_not_start(tmp_path: Path) -> None:
    """On a full disk, it cannot write its log either."""
    fixture = Fixture(tmp_path, cgroup_setting="off", python="/bin/false")
    with pytest.raises(ClusterUnavailable, match=f"exit 1.*is the disk of {fixture.state} full"):
        fixture.deploy("pass")
    fixture.close()


def test_room_that_somebody_took_away_or_replaced_is_never_written_to(tmp_path: Path) -> None:
    """The crawler owns the folder. What it put in place of the name must not be written to or
    trusted.
    """
    (tmp_path / "victim").write_text("as it was")
    for replaced in (False, True):
        room = EndReserve(str(tmp_path))
        (tmp_path / "end.room").unlink()
        if replaced:
            (tmp_path / "end.room").symlink_to(tmp_path / "victim")
        assert not room.become(str(tmp_path / "end.json"), {"exit_code": 3})
        assert not (tmp_path / "end.json").exists()
    assert (tmp_path / "victim").read_text() == "as it was"
    room = EndReserve(str(tmp_path))
    assert room.become(str(tmp_path / "end.json"), {"exit_code": 3})
    assert (tmp_path / "end.json").read_text() == '{"exit_code": 3}'
    assert EndReserve(str(tmp_path)).become(str(tmp_path / "end.json"), {"exit_code": 0}), (
        "there is one"
    )
    assert (tmp_path / "end.json").read_text() == '{"exit_code": 3}'

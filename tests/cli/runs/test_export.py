"""Exports: what is shown, sending again, and downloads that are complete or missing."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import respx

from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.runs.files import fetch
from tests.cli.cli_answers import COMPLETED, EXPORT
from tests.cli.cli_harness import Served, serve
from tests.cli.cli_support import Crawlctl


@pytest.fixture
def served() -> Iterator[Served]:
    """A gateway with an archive of 300 kB."""
    with serve() as running:
        running.archive = os.urandom(300_000)
        running.runs = [_run(EXPORT | {"sha256": running.sha256, "bytes": 300_000})]
        yield running


def _run(*exports: dict[str, Any]) -> dict[str, Any]:
    return COMPLETED | {"exports": list(exports)}


def test_a_download_is_there_completely(served: Served, crawlctl: Crawlctl, tmp_path: Path) -> None:
    result = crawlctl(
        "--gateway", served.url, "export", "7", "--download", str(tmp_path / "new"), "-o", "json"
    )
    assert result.code == 0, result.err
    file = tmp_path / "new" / "run-7-attempt-1-supporting-files.zip"
    assert file.read_bytes() == served.archive
    assert result.json == {
        "run_id": 7,
        "attempt": 1,
        "file": str(file),
        "bytes": 300_000,
        "sha256": served.sha256,
    }
    assert list(file.parent.iterdir()) == [file]
    assert "/v1/runs/7/archive?attempt=1" in served.paths


def test_a_second_download_leaves_the_first_alone(
    served: Served, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    file = tmp_path / "run-7-attempt-1-supporting-files.zip"
    file.write_text("mine")
    result = crawlctl("--gateway", served.url, "export", "7", "--download", str(tmp_path))
    assert result.code == 4
    assert file.read_text() == "mine"
    assert "/v1/runs/7/archive?attempt=1" not in served.paths


def test_a_dangling_link_is_not_followed(
    served: Served, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    (tmp_path / "run-7-attempt-1-supporting-files.zip").symlink_to(tmp_path / "elsewhere")
    assert crawlctl("--gateway", served.url, "export", "7", "--download", str(tmp_path)).code == 4
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("fault", ["cut", "changed", "longer"])
def test_nothing_is_left_of_what_is_not_whole(
    served: Served, crawlctl: Crawlctl, tmp_path: Path, fault: str
) -> None:
    if fault == "cut":
        served.cut_after = 100_000
    elif fault == "changed":
        served.archive = bytes(300_000)
    else:
        served.archive += b"x"
    result = crawlctl("--gateway", served.url, "export", "7", "--download", str(tmp_path))
    assert result.code == (8 if fault == "cut" else 1)
    assert list(tmp_path.iterdir()) == []
    assert ("SHA-256" in result.err) == (fault != "cut")


def test_a_folder_that_cannot_be_written_to(
    served: Served, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = crawlctl("--gateway", served.url, "export", "7", "--download", str(tmp_path / "file"))
    assert result.code == 1
    assert "cannot be written" in result.err


@pytest.mark.parametrize("links", [True, False])
def test_somebody_takes_the_name_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Such as another download of the same file, whatever the file system supports."""

    def none(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", none)
    target = tmp_path / "a.zip"

    def pieces() -> Iterator[bytes]:
        yield b"mine"
        target.write_text("theirs")

    with pytest.raises(CommandFailed, match="already exists") as failed:
        fetch(pieces(), target, hashlib.sha256(b"mine").hexdigest())
    assert failed.value.code is Exit.NOT_IN_THIS_STATE
    assert target.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [target]


def test_nobody_else_reads_a_draft(tmp_path: Path) -> None:
    modes = []

    def pieces() -> Iterator[bytes]:
        yield b"half"
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir())
        yield b"whole"

    assert fetch(pieces(), tmp_path / "a.zip", hashlib.sha256(b"halfwhole").hexdigest()) == 9
    assert modes == [0o600]


@pytest.mark.parametrize(
    ("exports", "words", "code", "part"),
    [
        ([], [], 3, "nothing was exported for run 7"),
        ([EXPORT], ["--attempt", "2"], 3, "run 7 attempt 2"),
        (
            [EXPORT | {"status": "failed", "url": None, "sha256": None, "error": "no bucket"}],
            [],
            4,
            "no bucket",
        ),
    ],
)
def test_no_archive(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    exports: list[dict[str, Any]],
    words: list[str],
    code: int,
    part: str,
) -> None:
    gateway.get("/v1/runs/7").respond(json=_run(*exports))
    result = crawlctl("export", "7", "--download", ".", *words)
    assert result.code == code
    assert part in result.err


def test_the_newest_archived_attempt_is_fetched(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    failed = EXPORT | {"attempt": 3, "status": "failed", "url": None, "sha256": None}
    second = EXPORT | {"attempt": 2, "sha256": hashlib.sha256(b"two").hexdigest()}
    gateway.get("/v1/runs/7").respond(json=_run(EXPORT, second, failed))
    route = gateway.get("/v1/runs/7/archive").respond(content=b"two")
    assert crawlctl("export", "7", "--download", str(tmp_path), "-o", "name").code == 0
    assert route.calls.last.request.url.params["attempt"] == "2"


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ([], {"event": True, "files": True}),
        (["--only", "event"], {"event": True, "files": False}),
        (["--only", "files", "--attempt", "2"], {"event": False, "files": True, "attempt": 2}),
    ],
)
def test_sending_again(
    gateway: respx.MockRouter, crawlctl: Crawlctl, words: list[str], body: dict[str, object]
) -> None:
    route = gateway.post("/v1/runs/7/export").respond(202, json=COMPLETED | {"note": "on its way"})
    result = crawlctl("export", "7", "--resend", *words)
    assert result.code == 0
    assert "on its way" in result.out
    assert json.loads(route.calls.last.request.content) == body


@pytest.mark.parametrize("words", [["--resend", "--download", "."], ["--only", "event"]])
def test_usage(crawlctl: Crawlctl, words: list[str]) -> None:
    assert crawlctl("export", "7", *words).code == 2

"""The options of every verb, and how the gateway is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import respx
from cli_support import GATEWAY, Crawlctl

from crawler_lifecycle.cli import output, session
from crawler_lifecycle.cli.problems import CommandFailed

HEAVY = ("temporalio", "sqlalchemy", "fastapi", "pydantic", "uvicorn", "alembic")


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["-o", "json", "list"], ["list"]),
        (["list", "-q", "--no-color", "--timeout=5"], ["list"]),
        (["start", "x", "-a", "-o=1"], ["start", "x", "--arg=-o=1"]),
        (["start", "x", "-ak=v", "-s", "K=-q"], ["start", "x", "--arg=k=v", "--setting=K=-q"]),
        (["stop", "1", "--reason", "--gateway"], ["stop", "1", "--reason=--gateway"]),
        (["stop", "--", "-o", "json"], ["stop", "--", "-o", "json"]),
        (["start", "x", "-a"], ["start", "x", "-a"]),
    ],
)
def test_split(words: list[str], rest: list[str]) -> None:
    assert session.split(words)[1] == rest


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("1.5s", 1.5), ("30m", 1800), ("1h30m", 5400), ("2h", 7200), ("1m5", 65)]
)
def test_durations(text: str, expected: float) -> None:
    assert session.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-5", "5d", "1h 30m x"])
def test_no_durations(text: str) -> None:
    with pytest.raises(CommandFailed):
        session.seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (3, "3 s"),
        (59.9, "59 s"),
        (65, "1 min 5 s"),
        (3600, "1 h"),
        (7860, "2 h 11 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert output.span(seconds) == text


def test_gateway_by_option_then_variable_then_file(
    crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / ".crawl").mkdir()
    (tmp_path / ".crawl" / "dev.json").write_text(json.dumps({"gateway": "http://from-file.test"}))
    monkeypatch.chdir(below)
    with respx.mock:
        for url in ("http://from-option.test", GATEWAY, "http://from-file.test"):
            respx.get(f"{url}/v1/crawlers").respond(json={"crawlers": [{"name": url}]})
        assert "from-option" in crawlctl("crawler", "list", "--gateway", "http://from-option.test", "-o", "name").out
        assert GATEWAY in crawlctl("crawler", "list", "-o", "name").out
        monkeypatch.delenv("LIFECYCLE_GATEWAY__URL")
        assert "from-file" in crawlctl("crawler", "list", "-o", "name").out


def test_no_gateway_known(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFECYCLE_GATEWAY__URL")
    result = crawlctl("list")
    assert result.code == 8
    assert "crawlctl dev" in result.err


def test_colour_only_on_demand(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.split(["list", "--no-color"])[0].color is False
    monkeypatch.setenv("NO_COLOR", "1")
    assert session.split(["list"])[0].color is False


def test_client_verbs_are_light_and_quick(tmp_path: Path) -> None:
    """Up to its first request a verb loads no SDK, database or server, and takes less than 0.4 s on a free machine."""
    code = (
        "import sys; from crawler_lifecycle.cli.main import run; code = run(sys.argv[1:]);"
        f"print(code, [m for m in {HEAVY} if m in sys.modules])"
    )
    for words in (["list", "--gateway", "http://127.0.0.1:1"], ["start", "x", "--gateway", "http://127.0.0.1:1"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout == "8 []\n", done.stderr
    quickest = min(_seconds(tmp_path, "--help") for _ in range(3))
    assert quickest < 0.8, "twice the budget, because test machines are busy"


def _seconds(folder: Path, *words: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "crawler_lifecycle.cli", *words], check=True, capture_output=True, cwd=folder)
    return time.perf_counter() - begun


def test_help_shows_every_verb(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "crawler_lifecycle.cli", "--help"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    for verb in ("start", "stop", "force-stop", "resume", "list", "describe", "tasks", "wait", "look", "dev", "db"):
        assert re.search(rf"^│ {verb}\b.*\.", done.stdout, re.MULTILINE), verb

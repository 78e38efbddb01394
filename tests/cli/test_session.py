"""The options of all verbs, and how the gateway is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import respx

from crawler_lifecycle.cli import main, output, session
from crawler_lifecycle.cli.problems import CommandFailed
from tests.cli.cli_support import GATEWAY, Crawlctl

HEAVY = (
    "temporalio",
    "sqlalchemy",
    "fastapi",
    "boto3",
    "kubernetes",
    "pydantic",
    "uvicorn",
    "alembic",
)


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
    ("text", "expected"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2h", 7200),
        ("1m5", 65),
        ("7d", 604_800),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert session.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-5", "5w", "1h 30m x", "٣"])
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
    (tmp_path / ".crawl" / "dev.json").write_text(json.dumps({"gateway": "http://localhost:8500"}))
    monkeypatch.chdir(below)
    with respx.mock:
        for url in ("http://from-option.test", GATEWAY, "http://localhost:8500"):
            respx.get(f"{url}/v1/crawlers").respond(json={"crawlers": [{"name": url}]})
        assert (
            "from-option"
            in crawlctl("crawler", "list", "--gateway", "http://from-option.test", "-o", "name").out
        )
        assert GATEWAY in crawlctl("crawler", "list", "-o", "name").out
        monkeypatch.delenv("LIFECYCLE_GATEWAY__URL")
        assert "localhost" in crawlctl("crawler", "list", "-o", "name").out


def test_no_gateway_known(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFECYCLE_GATEWAY__URL")
    result = crawlctl("list")
    assert result.code == 8
    assert "crawlctl dev" in result.err


def test_colour_only_on_demand(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.split(["list", "--no-color"])[0].color is False
    monkeypatch.setenv("NO_COLOR", "1")
    assert session.split(["list"])[0].color is False


LOADED = f"""
import json, sys
from crawler_lifecycle.cli.main import run
ends = [(run(words), [m for m in {HEAVY} if m in sys.modules]) for words in json.loads(sys.argv[1])]
print(json.dumps(ends), file=sys.stderr)
"""


def test_nothing_heavy_is_loaded_before_the_first_request(tmp_path: Path) -> None:
    nowhere = ("--gateway", "http://127.0.0.1:1")
    calls: list[tuple[str, ...]] = [
        ("--help",),
        ("gateway", "token", "new", "--name", "a", "--role", "read"),
    ]
    calls += [
        ("list", *nowhere),
        ("start", "x", *nowhere),
        ("watch", "7", *nowhere),
        ("export", "7", *nowhere),
    ]
    calls += [("tasks", "add", "7", "-a", "a=1", *nowhere), ("logs", "7", "-f", *nowhere)]
    command = [sys.executable, "-c", LOADED, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(done.stderr.splitlines()[-1]) == [[0, []]] * 2 + [[8, []]] * 6


def test_help_shows_every_verb(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = crawlctl("--help").out
    for verb in (*main.RUNS, *main.SERVICES, *main.PROGRAM, "crawler", "db"):
        assert re.search(rf"^│ {verb}\b.*\.", shown, re.MULTILINE), verb

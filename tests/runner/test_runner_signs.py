"""Signs of life of crawlers without counters: what their processes write."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crawler_lifecycle.runner import contract, signs
from crawler_lifecycle.runner.main import Runner
from crawler_lifecycle.runner.signs import Signs
from tests.runner.runner_fixture import RunnerFixture, wait_until

#: What a crawler does repeatedly once it is told to begin, and whether this is a sign of life.
DOES = {
    "prints": ("print('page after page', flush=True)", True),
    "writes a file": ("open(sys.argv[1], 'a').write('a line of data')", True),
    "lets another write": ("subprocess.run(['/bin/sh', '-c', 'echo page after page'])", True),
    "nothing": ("pass", False),
    "wakes itself": ("os.write(wake, b'12345678'); os.read(woken, 8)", False),
}
LOOP = """
import os, subprocess, sys, time
woken, wake = os.pipe()
sys.stdin.readline()
while True:
    {does}
    time.sleep(0.02)
"""


@pytest.mark.parametrize("case", DOES)
def test_what_is_a_sign_of_life(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "SECONDS", 0.0)
    does, shows = DOES[case]
    command = [
        sys.executable,
        "-B",
        "-I",
        "-S",
        "-c",
        LOOP.format(does=does),
        str(tmp_path / "file"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as crawler:
        try:
            watched = Signs()
            monkeypatch.setattr(signs.os, "getpid", lambda: crawler.pid)
            below = signs.below
            monkeypatch.setattr(signs, "below", lambda pid, most: [pid, *below(pid, most)])
            assert not watched.check()
            assert watched.quiet_s() is None
            crawler.stdin.write(b"begin\n")
            crawler.stdin.flush()
            if shows:
                wait_until(watched.check)
                assert watched.quiet_s() == 0
                wait_until(watched.check)
            else:
                time.sleep(0.5)
                assert not watched.check()
                assert watched.quiet_s() is None
        finally:
            crawler.kill()


def test_a_kernel_that_does_not_say_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "SECONDS", 0.0)
    monkeypatch.setattr(signs, "below", lambda pid, most: [2**30])
    watched = Signs()
    assert not watched.check()
    assert watched.quiet_s() is None


def test_when_a_crawler_last_wrote_is_in_its_stats_and_counts_for_no_counter(
    fixture: RunnerFixture,
) -> None:
    code = "import time\nopen(__import__('os').environ['CRAWL_FILES_DIR'] + '/ready', 'w')\n"
    process = fixture.start_python(
        code + "while True: print('page after page', flush=True); time.sleep(0.1)", eager=True
    )
    wait_until(fixture.stats_file.exists)
    first = fixture.stats()
    assert set(first) == {"wrote_at"}
    wait_until(lambda: fixture.stats() != first)  # it continues to write
    process.kill()


def test_progress_says_how_long_it_was_quiet(
    fixture: RunnerFixture, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("crawler_lifecycle.runner.main.PROGRESS_SECONDS", 0.0)
    runner = Runner(contract.Contract.read(fixture.environment({}, {})), scrapy=False)
    runner._tick()
    assert "quiet_s" not in json.loads(capfd.readouterr().out)["crawl_progress"]
    runner._signs._wrote = time.monotonic() - 61
    runner._tick()
    assert json.loads(capfd.readouterr().out)["crawl_progress"]["quiet_s"] >= 61

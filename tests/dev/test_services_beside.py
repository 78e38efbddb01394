"""Services that join a running ``crawlctl dev``, its destinations, and a scheduler service that is
down.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli.admin import services
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.gateway.runs.crawlers import FRESH_S
from tests.dev.dev_support import ANSWER_S, PATIENCE_S, Dev, wait_until


def _clean(**more: str) -> dict[str, str]:
    """An environment that names no system."""
    return {
        k: v for k, v in os.environ.items() if not k.startswith(("LIFECYCLE_", "TEMPORAL_"))
    } | more


def _status(serving: Dev, run_id: str) -> str:
    return str(json.loads(serving.crawlctl("describe", run_id, "-o", "json").stdout)["status"])


def test_it_delivers_where_it_was_told_to(serving: Dev) -> None:
    run_id = serving.crawlctl(
        "start", "quick", "--poll-minutes", "0.02", "-o", "name"
    ).stdout.strip()
    zips, told = serving.state_dir.parent / "zips", serving.state_dir.parent / "told.jsonl"
    wait_until(lambda: told.is_file() and f'"run_id":{run_id}' in told.read_text().replace(" ", ""))
    wait_until(lambda: list(zips.rglob("*.zip")))
    assert not (serving.state_dir / "archive").exists()
    assert not (serving.state_dir / "events.jsonl").exists()


@pytest.mark.parametrize("option", ["--archive", "--events"])
def test_a_place_that_nothing_can_go_to_is_refused(tmp_path: Path, option: str) -> None:
    dev = Dev(tmp_path / "state", (option, "ftp://elsewhere"))
    dev.launch()
    assert dev.process is not None
    assert dev.process.wait(ANSWER_S) == 2
    assert "ftp://elsewhere" in dev.error_output()
    dev.close()


def test_a_start_while_the_scheduler_service_is_away_is_deployed_when_it_is_back(
    serving: Dev,
) -> None:
    serving.crawlctl("crawler", "list")
    scheduler = serving.known["processes"]["scheduler"]
    os.kill(scheduler, signal.SIGSTOP)
    try:
        time.sleep(FRESH_S)  # sooner, each try would be one more run
        until = time.monotonic() + PATIENCE_S
        while (
            "does not answer"
            not in (
                started := serving.crawlctl(
                    "start", "quick", "--poll-minutes", "0.02", "-o", "name"
                )
            ).stderr
        ):
            assert time.monotonic() < until, "the catalogue of before is taken for fresh"
        assert "s ago, and is deployed when the service answers again" in started.stderr
        assert _status(serving, started.stdout.strip()) in ("INITIALIZING", "PROCESSING")
    finally:
        os.kill(scheduler, signal.SIGCONT)
    wait_until(lambda: _status(serving, started.stdout.strip()) == "COMPLETED")


def test_a_gateway_in_its_folder_joins_it_and_says_so(serving: Dev) -> None:
    run_id = serving.crawlctl("start", "quick", "-o", "name").stdout.strip()
    below = serving.state_dir.parent / "below"
    below.mkdir()
    said = below / "said.txt"
    with said.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "crawler_lifecycle.cli", "gateway"],
            cwd=below,
            env=_clean(LIFECYCLE_GATEWAY__AUTH_DISABLED="true", LIFECYCLE_GATEWAY__PORT="0"),
            stderr=sink,
        )
    try:
        wait_until(lambda: "listens on http://" in said.read_text())
        assert f"gateway: joins the stack of {serving.state_dir}/dev.json" in said.read_text()
        url = said.read_text().partition("listens on ")[2].split()[0].strip('",')
        with httpx.Client(base_url=url, trust_env=False, timeout=ANSWER_S) as http:
            wait_until(lambda: http.get("/readyz").status_code == 200)
            assert http.get(f"/v1/runs/{run_id}").json()["crawler"] == "quick"
    finally:
        process.terminate()
        process.wait(ANSWER_S)
    assert not (below / ".crawl").exists(), "it would be a system of its own"


@pytest.mark.parametrize("service", ["worker", "gateway", "scheduler"])
def test_beside_a_stack_that_does_not_run_a_service_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    for name in dev_json.NAMING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".crawl"
    folder.mkdir(mode=0o700)
    known = {
        "temporal": "127.0.0.1:7233",
        "processes": {"temporal": os.getpid()},
        "started": {"temporal": "before"},
    }
    (folder / "dev.json").write_text(json.dumps(known))
    (folder / "dev.json").chmod(0o600)
    with pytest.raises(CommandFailed, match="is not running") as refused:
        services.join(service)
    assert "crawlctl dev" in str(refused.value.next_step)
    monkeypatch.setenv("LIFECYCLE_DATABASE__URL", "sqlite:////nowhere/own.db")
    before = dict(os.environ)
    services.join(service)
    assert dict(os.environ) == before, "who names a system has it"

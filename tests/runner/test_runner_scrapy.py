"""The runner around real Scrapy spiders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.domain.last_words import last_words
from crawler_lifecycle.domain.task import End, read_end, told_exit
from crawler_lifecycle.runner.state import NOT_ASKED, NOT_CLEAN, WENT_ON
from crawler_lifecycle.runner.verdict import BEFORE_START
from tests.runner.runner_fixture import wait_until
from tests.runner.scrapy_project import ScrapyFixture

pytestmark = pytest.mark.processes

#: More pages than the slow spider can request during a test.
ENDLESS = "2000"


def test_a_spider_that_finishes(scrapy_fixture: ScrapyFixture) -> None:
    assert scrapy_fixture.crawl("pages") == 0
    summary = scrapy_fixture.summary()
    assert summary["finish_reason"] == "finished"
    assert (summary["pages"], summary["items"], summary["errors"]) == (5, 5, 0)
    assert summary["bytes"] > 55
    assert (summary["exit"], summary["exit_code"], summary["resumable"]) == (0, 0, False)
    assert "resumed" not in summary, "nobody resumes a first attempt"
    assert summary["peak_memory"] > 20 * 2**20
    assert summary["started_at"] < summary["finished_at"]
    stats = scrapy_fixture.stats()
    assert (stats["pages"], stats["finish_reason"], stats["resumable"]) == (5, "finished", False)
    assert scrapy_fixture.progress()[-1]["items"] == 5
    assert b"the project's own extension is there" in scrapy_fixture.output
    assert b"Telnet console listening" not in scrapy_fixture.output


def test_one_stop_then_resumption_then_an_unclean_end(scrapy_fixture: ScrapyFixture) -> None:
    fixture = scrapy_fixture
    # Stopped: several signals are sent, and Scrapy receives one.
    process = fixture.start_spider("slow", {"n": ENDLESS})
    wait_until(lambda: len(fixture.paths) >= 2)
    for _ in range(4):
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.05)
    assert fixture.finish(process) == 11
    first = fixture.summary()
    assert (first["finish_reason"], first["resumable"], first["exit_code"]) == ("shutdown", True, 0)
    assert fixture.signals() == 1
    assert 0 < first["pages"] < int(ENDLESS)
    # Resumed: only the remaining pages.
    process = fixture.start_spider("slow", {"n": ENDLESS}, CRAWL_RESUME="1", CRAWL_ATTEMPT="2")
    wait_until(lambda: len(fixture.paths) >= first["pages"] + 2)
    assert (fixture.stats()["resumed"], fixture.stats()["resume_note"]) == (True, WENT_ON)
    # Killed in the middle: the state can no longer be trusted.
    os.killpg(process.pid, signal.SIGKILL)
    fixture.finish(process)
    assert f"[runner] {WENT_ON}." in fixture.output.decode()
    assert not set(fixture.paths[: first["pages"]]) & set(fixture.paths[first["pages"] :])
    fixture.paths.clear()
    assert fixture.crawl("pages", {"n": "4"}, CRAWL_RESUME="1", CRAWL_ATTEMPT="3") == 0
    assert (
        b"not from a clean stop, so it was moved aside and the crawl started from the beginning."
        in fixture.output
    )
    assert fixture.summary()["pages"] == 4
    assert (fixture.summary()["resumed"], fixture.summary()["resume_note"]) == (False, NOT_CLEAN)
    assert (fixture.state / "job.aside").is_dir()
    assert fixture.crawl("pages", {"n": "4"}, CRAWL_ATTEMPT="4") == 0
    assert b"The task did not resume" in fixture.output
    assert fixture.summary()["pages"] == 4
    assert (fixture.summary()["resumed"], fixture.summary()["resume_note"]) == (False, NOT_ASKED)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"ITEM_PIPELINES": {"demo.extension.Away": 1}}, "ConnectionError: the database is away"),
        ({"SCHEDULER": "demo.extension.Away"}, "ConnectionError: the queue is away"),
        ({"EXTENSIONS": {"demo.extension.Stops": 1}}, None),
    ],
    ids=["pipeline", "scheduler", "itself"],
)
def test_only_a_signal_that_was_passed_on_is_a_stop(
    scrapy_fixture: ScrapyFixture, settings: dict[str, object], error: str | None
) -> None:
    """Scrapy reports ``shutdown`` whenever its engine is closed early."""
    assert scrapy_fixture.crawl("pages", CRAWL_SETTINGS=json.dumps(settings)) == 1
    summary = scrapy_fixture.summary()
    assert (summary["told_to_stop"], summary.get("finish_reason"), summary["resumable"]) == (
        False,
        None,
        False,
    )
    code, verdict = told_exit(1, summary["exit"], summary.get("own_exit"), summary["told_to_stop"])
    ending = read_end(End(code, verdict=verdict))
    assert (ending.status, ending.outcome) == ("FAILED", "failed")
    if error is not None:
        assert last_words(scrapy_fixture.output.decode()) == error
    assert scrapy_fixture.crawl("pages", CRAWL_RESUME="1", CRAWL_ATTEMPT="2") == 0
    assert scrapy_fixture.summary()["resume_note"] == NOT_CLEAN


def test_a_clean_stop_is_resumed_to_the_end(scrapy_fixture: ScrapyFixture) -> None:
    fixture = scrapy_fixture

    def stop(process: subprocess.Popen[bytes]) -> int:
        """Answer no further page before it has received the stop, so that it cannot finish."""
        heard = fixture.signals()
        process.terminate()
        wait_until(lambda: fixture.signals() > heard or process.poll() is not None)
        fixture.site.answer_all()
        return fixture.finish(process)

    fixture.site.answer(2)
    process = fixture.start_spider("slow", {"n": "30"})
    wait_until(lambda: len(fixture.paths) > 2)
    assert stop(process) == 11
    fixture.site.answer(len(fixture.paths))
    fixture.next_attempt()
    process = fixture.start_spider("slow", {"n": "30"}, CRAWL_RESUME="1")
    wait_until(lambda: fixture.listens(process))
    # Stopped again before or just after its start: this loses nothing.
    assert stop(process) == 11
    assert fixture.summary()["resumable"] is True
    quick = json.dumps({"DOWNLOAD_DELAY": 0})
    fixture.next_attempt()
    assert fixture.crawl("slow", {"n": "30"}, CRAWL_RESUME="1", CRAWL_SETTINGS=quick) == 0
    assert fixture.summary()["finish_reason"] == "finished"
    assert sorted(fixture.paths) == sorted(f"/{n}" for n in range(30))
    assert fixture.summary()["items"] == 30
    statistics = fixture.stats()["scrapystats"]
    assert statistics["item_scraped_count"] == 30, "of all attempts, as the counters are"
    assert statistics["memusage/max"] < 2 * statistics["memusage/startup"], (
        "a largest value is not added"
    )


@pytest.mark.parametrize(
    "delay",
    [
        0.0,
        0.12,
        0.27,
        *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.05, 0.17, 0.22, 0.4)),
    ],
)
def test_a_stop_before_scrapy_listens(scrapy_fixture: ScrapyFixture, delay: float) -> None:
    process = scrapy_fixture.start_spider("slow", {"n": ENDLESS})
    wait_until(lambda: scrapy_fixture.listens(process))
    time.sleep(delay)
    process.terminate()
    assert scrapy_fixture.finish(process) == 11
    assert scrapy_fixture.summary()["finish_reason"] in (BEFORE_START, "shutdown")


@pytest.mark.parametrize(
    ("spider", "code", "reason", "resumable"),
    [
        ("banned", 0, "banned", False),
        ("raises", 0, "finished", False),
        ("bad-start", 1, "start_error", False),
        ("bad-init", 1, None, False),
    ],
)
def test_how_spiders_end(
    scrapy_fixture: ScrapyFixture, spider: str, code: int, reason: str | None, resumable: bool
) -> None:
    assert scrapy_fixture.crawl(spider) == code
    summary = scrapy_fixture.summary()
    assert (summary.get("finish_reason"), summary["resumable"]) == (reason, resumable)
    if spider == "raises":
        assert summary["errors"] == 5


def test_an_own_limit(scrapy_fixture: ScrapyFixture) -> None:
    settings = json.dumps({"CLOSESPIDER_PAGECOUNT": "2", "CONCURRENT_REQUESTS": "1"})
    assert scrapy_fixture.crawl("pages", {"n": "40"}, CRAWL_SETTINGS=settings) == 0
    assert scrapy_fixture.summary()["finish_reason"] == "closespider_pagecount"


def test_too_much_memory_ends_it_cleanly(scrapy_fixture: ScrapyFixture) -> None:
    assert scrapy_fixture.crawl("hungry", {"n": "1"}, CRAWL_MEMORY_LIMIT=str(400 * 2**20)) == 1
    summary = scrapy_fixture.summary()
    assert summary["finish_reason"] == "memusage_exceeded"
    assert 340 * 2**20 < summary["peak_memory"] < 450 * 2**20


@pytest.mark.parametrize(
    ("spider", "args", "words"),
    [
        (
            "no-such-spider",
            {},
            "there is no spider 'no-such-spider' in this project; its spiders are: bad-init, ",
        ),
        (
            "strict",
            {"only": "1"},
            "the spider does not take these arguments: got an unexpected keyword argument 'port'",
        ),
    ],
)
def test_bad_configuration(
    scrapy_fixture: ScrapyFixture, spider: str, args: dict[str, str], words: str
) -> None:
    assert scrapy_fixture.crawl(spider, args) == 4
    assert words in scrapy_fixture.summary()["message"]
    assert words in scrapy_fixture.output.decode()


def test_a_project_that_cannot_be_imported(scrapy_fixture: ScrapyFixture) -> None:
    (scrapy_fixture.project / "demo" / "settings.py").write_text("import no_such_module_at_all\n")
    assert scrapy_fixture.crawl("pages") == 4
    why = "the project cannot be imported: ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert why in scrapy_fixture.summary()["message"]


def test_no_project(scrapy_fixture: ScrapyFixture) -> None:
    (scrapy_fixture.project / "scrapy.cfg").unlink()
    assert scrapy_fixture.crawl("pages") == 4
    assert "no scrapy.cfg" in scrapy_fixture.summary()["message"]
    scrapy_fixture.project = scrapy_fixture.project / "nowhere"
    assert scrapy_fixture.crawl("pages") == 4


def test_arguments_arrive_as_they_are(scrapy_fixture: ScrapyFixture) -> None:
    args = {
        "a": "-s X=1",
        "b": "--",
        "c": "k=v=w",
        "d": "",
        "e": " \n\t'\"\\é☃ ",
        "f": "-o x.json",
        "retry_num": "2",
    }
    assert scrapy_fixture.crawl("echo", {**args, "n": "1"}) == 0
    assert json.loads((scrapy_fixture.files / "seen").read_text()) == args


def test_its_last_stats_hold_the_numbers_of_the_collector(scrapy_fixture: ScrapyFixture) -> None:
    assert scrapy_fixture.crawl("counts", {"n": "2"}) == 0
    [printed] = scrapy_fixture.lines("crawl_stats")
    told = scrapy_fixture.stats()["scrapystats"]
    assert told == printed
    assert (
        told["item_scraped_count"],
        told["downloader/response_status_count/200"],
        told["retry/count"],
    ) == (2, 2, 3)
    assert told["elapsed_time_seconds"] > 0
    assert all(type(number) in (int, float) for number in told.values())
    assert (
        not {"nan", "huge", "text", "flag", "a" * 121, "line\n", "start_time", "finish_reason"}
        & told.keys()
    )
    size = len(json.dumps(told))
    assert 8192 - 120 < size <= 8192, "as many as fit, the counters that matter first"
    assert "mine" not in told, "by its name it comes after those that are too many"
    assert scrapy_fixture.output.decode().splitlines()[-1].startswith('{"crawl_progress"')


def test_a_collector_that_does_not_tell_costs_nothing_else(scrapy_fixture: ScrapyFixture) -> None:
    assert scrapy_fixture.crawl("mute", {"n": "1"}) == 0
    assert scrapy_fixture.summary()["finish_reason"] == "finished"
    assert "scrapystats" not in scrapy_fixture.stats()
    assert b"The statistics cannot be read: ZeroDivisionError" in scrapy_fixture.output


def test_a_spider_that_takes_no_number_of_its_retry_gets_none(
    scrapy_fixture: ScrapyFixture,
) -> None:
    """test_arguments_arrive_as_they_are covers a spider that accepts it."""
    assert scrapy_fixture.crawl("picky", {"retry_num": "2"}) == 0
    assert (scrapy_fixture.files / "seen").read_text() == "picky"


def test_the_crawler_alone_is_killed(scrapy_fixture: ScrapyFixture) -> None:
    process = scrapy_fixture.start_spider("slow", {"n": ENDLESS})
    wait_until(lambda: scrapy_fixture.pages_so_far() >= 1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    assert scrapy_fixture.finish(process) == 137
    summary = scrapy_fixture.summary()
    assert (summary["signal"], summary.get("finish_reason"), summary["resumable"]) == (
        9,
        None,
        False,
    )
    assert summary["pages"] >= 1


def test_a_project_without_a_feed_gets_one(scrapy_fixture: ScrapyFixture) -> None:
    feed = scrapy_fixture.files / "items.jsonl"
    assert scrapy_fixture.crawl("pages", {"n": "2"}, CRAWL_ITEMS="off") == 0
    assert scrapy_fixture.crawl("pages", {"n": "2"}, CRAWL_SETTINGS='{"FEEDS": {}}') == 0
    assert scrapy_fixture.crawl("mute", {"n": "1"}) == 0  # no item
    assert not feed.exists()
    assert scrapy_fixture.crawl("own", {"n": "2"}) == 0  # it writes that file itself
    assert feed.read_text() == "{}\n{}\n"
    feed.unlink()
    for lines in (2, 4):  # existing files stay
        assert (
            scrapy_fixture.crawl(
                "pages", {"n": "2"}, CRAWL_SETTINGS='{"FEED_EXPORT_BATCH_ITEM_COUNT": "1"}'
            )
            == 0
        )
        assert len([json.loads(line)["url"] for line in feed.read_text().splitlines()]) == lines
    assert scrapy_fixture.summary()["items"] == 2, "the crawler's own count"
    assert scrapy_fixture.crawl("fed", {"n": "2"}) == 0
    assert len(feed.read_text().splitlines()) == 4


@pytest.mark.parametrize(("feeds", "count"), [
    ({"products": {"format": "csv"}, "log-[1].json": {"format": "json"}}, 4),
    ({"out/%(name)s.data": {"format": "jsonlines"}}, 2),
    ({"out.xml": {"format": "xml"}}, 2),
    ({"a.jsonl.gz": {"format": "jsonlines", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}}, 2),
    ({"a.jsonl": {"format": "jsonlines", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}}, 2),
    ({"semi.csv": {"format": "csv", "item_export_kwargs": {"delimiter": ";"}}}, 2),
], ids=range(6))  # fmt: skip
def test_feeds_of_any_name_and_format_are_read(
    scrapy_fixture: ScrapyFixture, feeds: dict[str, Any], count: int
) -> None:
    assert (
        scrapy_fixture.crawl("pages", {"n": "2"}, CRAWL_SETTINGS=json.dumps({"FEEDS": feeds})) == 0
    )
    summary = scrapy_fixture.summary()
    assert (summary["items"], summary["fields"]["items"], summary["fields"]["shares"]["url"]) == (
        2,
        count,
        1.0,
    )
    assert summary["fields"].get("note") == (
        f"2 items were counted, {count} can be read" if count > 2 else None
    )


@pytest.mark.parametrize("name", ["items.csv", "products"])
def test_items_of_scrapy_with_the_same_key_count_once(
    scrapy_fixture: ScrapyFixture, name: str
) -> None:
    """Scrapy's own counter also counts the second item."""
    said = {
        "CRAWL_ITEMS": '{"key": "none"}',
        "CRAWL_SETTINGS": json.dumps({"FEEDS": {name: {"format": "csv"}}}),
    }
    assert scrapy_fixture.crawl("pages", {"n": "2"}, **said) == 0
    summary = scrapy_fixture.summary()
    assert (summary["items"], summary["fields"]["items"]) == (2, 2), (
        "without a value of the key, each counts"
    )
    one = {**said, "CRAWL_ITEMS": '{"key": "url"}'}
    one["CRAWL_SETTINGS"] = json.dumps(
        {"FEEDS": {name: {"format": "csv"}, "twice": {"format": "json"}}}
    )
    for path in scrapy_fixture.files.iterdir():
        path.unlink()
    assert scrapy_fixture.crawl("pages", {"n": "2"}, **one) == 0
    summary = scrapy_fixture.summary()
    assert (summary["items"], summary["fields"]["items"]) == (2, 2), "two files, and two keys"


def test_feeds_and_downloads_with_relative_paths_are_kept_and_absolute_ones_stay(
    scrapy_fixture: ScrapyFixture,
) -> None:
    assert scrapy_fixture.crawl("fed", {"n": "2"}) == 0
    kept = {
        str(path.relative_to(scrapy_fixture.files))
        for path in scrapy_fixture.files.rglob("*")
        if path.is_file()
    }
    assert {"items-fed.jsonl", "deep/er/items.csv", "path.json"} <= kept
    assert len([name for name in kept if name.startswith("downloads/full/")]) == 2
    assert len((scrapy_fixture.files / "items-fed.jsonl").read_text().splitlines()) == 2
    elsewhere = scrapy_fixture.project / "absolute"
    assert {path.name for path in elsewhere.iterdir()} == {"items.json", "too.json"}
    assert {path.name for path in scrapy_fixture.project.iterdir()} <= {
        "absolute",
        "demo",
        "scrapy.cfg",
    }

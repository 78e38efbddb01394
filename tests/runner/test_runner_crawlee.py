"""What the runner reads from the storage of Crawlee."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from crawler_lifecycle.runner.crawlee import Crawlee

NODE, PYTHON = "SDK_CRAWLER_STATISTICS_0.json", "__CRAWLER_STATISTICS_0"
FINISHED = {"requestsFinished": 12, "requestsFailed": 2, "requestsRetries": 5}


def crawlee(state: Path, *, resume: bool = True, **env: str) -> tuple[Crawlee, dict[str, str]]:
    return Crawlee(env, str(state), resume=resume), env


def write(state: Path, text: str, name: str = NODE) -> Path:
    folder = state / "crawlee" / "key_value_stores" / "default"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


WHOLE = json.dumps(
    {**FINISHED, "requestsFailedPerMinute": 3, "requestMinDurationMillis": 207.5, "statsId": 0},
    indent=2,
)


@pytest.mark.parametrize(
    ("text", "pages", "errors"),
    [
        (WHOLE, 12, 2),
        (json.dumps({"requestsFinished": 3}), 3, 0),
        (json.dumps({**FINISHED, "errors": {f"it{n}": {"count": n} for n in range(9)}}), 12, 2),
        (json.dumps({**FINISHED, "errors": "x" * 10_000_000}), 12, 2),
        (WHOLE[: WHOLE.index("requestsFailed") - 1], 12, 0),
        (WHOLE[: WHOLE.index("12") + 1], None, None),
        ('{"message": "\\"requestsFinished\\": 7,"}', None, None),
        ('{"requestsFinished": "7", "requestsFailed": 1}', None, None),
        ('{"requestsFinished": -7, "requestsFailed": 1}', None, None),
        ('{"requestsFinished": 1' + "0" * 400 + "}", None, None),
        ("\0" * 100, None, None),
        ("", None, None),
    ],
    ids=lambda value: str(value)[:24],
)
def test_statistics_count_as_far_as_they_are_written(
    tmp_path: Path, text: str, pages: int | None, errors: int | None
) -> None:
    write(tmp_path, text)
    found = crawlee(tmp_path)[0].read() or {}
    assert (found.get("pages"), found.get("errors")) == (pages, errors)


def test_all_numbers_but_those_that_change_by_themselves_are_statistics(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    found = crawlee(tmp_path)[0].read()
    assert found is not None
    assert found["scrapystats"] == {**FINISHED, "requestMinDurationMillis": 207}


def test_crawlers_of_one_program_are_added(tmp_path: Path) -> None:
    for name in (NODE, PYTHON, "SDK_CRAWLER_STATISTICS_1.json"):
        write(tmp_path, WHOLE, name)
    found = crawlee(tmp_path)[0].read()
    assert found is not None
    assert (found["pages"], found["errors"]) == (36, 6)


@pytest.mark.parametrize("stands", ["nothing", "a pipe", "a link", "a folder"])
def test_what_is_no_file_is_not_read(tmp_path: Path, stands: str) -> None:
    file = write(tmp_path, WHOLE)
    file.rename(tmp_path / "secret")
    if stands == "a pipe":
        os.mkfifo(file)
    elif stands == "a link":
        file.symlink_to(tmp_path / "secret")
    elif stands == "a folder":
        file.mkdir()
    assert crawlee(tmp_path)[0].read() is None


def test_an_attempt_that_begins_anew_is_not_told_the_counters_before_it(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    anew, env = crawlee(tmp_path, resume=False)
    assert (anew.read(), env["CRAWLEE_PURGE_ON_START"]) == (None, "1")
    write(tmp_path, '{"requestsFinished": 1}')
    assert anew.read() == {"pages": 1, "errors": 0, "scrapystats": {"requestsFinished": 1}}


def test_an_attempt_that_goes_on_says_whether_there_was_anything(tmp_path: Path) -> None:
    first, _ = crawlee(tmp_path)
    write(tmp_path, WHOLE)
    no_queue, _ = crawlee(tmp_path)
    (tmp_path / "crawlee" / "request_queues" / "default").mkdir(parents=True)
    second, env = crawlee(tmp_path)
    told = [(attempt.read() or {}).get("resumed") for attempt in (first, no_queue, second)]
    assert told == [False, None, True], "counters alone do not prove that the queue was stored"
    assert env["CRAWLEE_PURGE_ON_START"] == "0"


def test_memory_and_folder_are_told_and_the_catalogue_wins(tmp_path: Path) -> None:
    limit = str(512 * 2**20)
    env = crawlee(tmp_path, CRAWL_MEMORY_LIMIT=limit)[1]
    assert (env["CRAWLEE_MEMORY_MBYTES"], env["CRAWLEE_STORAGE_DIR"]) == (
        "512",
        str(tmp_path / "crawlee"),
    )
    env = crawlee(
        tmp_path,
        CRAWL_MEMORY_LIMIT=limit,
        CRAWLEE_MEMORY_MBYTES="300",
        CRAWLEE_STORAGE_DIR="/elsewhere",
    )[1]
    assert (env["CRAWLEE_MEMORY_MBYTES"], env["CRAWLEE_STORAGE_DIR"]) == ("300", "/elsewhere")
    assert "CRAWLEE_MEMORY_MBYTES" not in crawlee(tmp_path, CRAWL_MEMORY_LIMIT="0")[1]

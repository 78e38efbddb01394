"""Searches in the log of one task with a million lines, of which one reports an error, compared with
the reading of the whole log.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial

from benchmarks.sizes import size
from crawler_lifecycle.domain.last_words import last_error
from crawler_lifecycle.domain.log_search import (
    WINDOW,
    FoundLine,
    LineLevel,
    LogQuery,
    line_at,
    line_of,
    lines_around,
    search,
)
from crawler_lifecycle.gateway.streams.logs import ERROR_SEARCH_MAX, FOUND_MAX

LINES = size(1_000_000, 1_000, "BENCHMARK_LINES")
ROUNDS = size(5, 1)
AROUND = 200
LINE = (
    b"2026-03-01 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET https://shop.example/p/1234> "
    b"(referer: None)\n"
)
ERROR = b"2026-03-01 12:00:00 [scrapy.core.scraper] ERROR: no price\n"
QUERIES = {
    "a text that the log does not contain": LogQuery("no such text"),
    "errors": LogQuery(None, LineLevel.ERROR),
    "errors with a text of every line": LogQuery("scrapy", LineLevel.ERROR),
    "warnings": LogQuery(None, LineLevel.WARNING),
}


async def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryFile() as file:
        before = LINES * 2 // 3
        file.write(LINE * before + ERROR + LINE * (LINES - before - 1))
        file.flush()
        length = file.tell()
        read = partial(_read, file.fileno())
        print(f"a log of {LINES:,} lines, {length / 1e6:.0f} MB, its error at line {before + 1:,}")
        _print("baseline: read it all", lambda: _read_all(read, length))
        _print("the lines around the last error", lambda: _around_error(read, length))
        last = partial(line_of, read, length, LINES)
        _print(
            "the lines around its last line",
            lambda: lines_around(read, length, last(), AROUND, AROUND),
        )
        for title, query in QUERIES.items():
            asked = partial(search, read, length, query, FoundLine(1, 0), FOUND_MAX)
            _print(f"search for {title}", asked)


def _read(file: int, at: int, most: int) -> bytes:
    return os.pread(file, most, at)


def _read_all(read: Callable[[int, int], bytes], length: int) -> None:
    for at in range(0, length, WINDOW):
        read(at, WINDOW)


def _around_error(read: Callable[[int, int], bytes], length: int) -> None:
    found = last_error(read, length, ERROR_SEARCH_MAX)
    assert found is not None
    lines_around(read, length, line_at(read, found.at), AROUND, AROUND)


def _print(title: str, call: Callable[[], object]) -> None:
    best = min(_milliseconds(call) for _ in range(ROUNDS))
    print(f"    {best:7.0f} ms of processor time: {title}", flush=True)


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return 1000 * (time.process_time() - began)

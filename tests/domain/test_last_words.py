"""The line of a log that explains why a crawler failed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.last_words import (
    ERROR_MAX,
    SEARCH_MAX,
    Read,
    Words,
    error_of,
    kept_log,
    last_error,
    last_words,
    short,
)
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Change, End, TaskStatus, log_tail

PYTHON = """begin
Traceback (most recent call last):
  File "/app/fetch.py", line 1, in <module>
    import bs4
    ^^^^^^^^^^
"""
SCRAPY = """2026-03-01 12:00:00 [scrapy.core.scraper] ERROR: Spider error processing <GET http://shop/1> (referer: None)
Traceback (most recent call last):
  File "/app/shop.py", line 9, in parse
    yield {"price": row["price"]}
          ~~~^^^^^^^^^
KeyError: 'price'
2026-03-01 12:00:01 [scrapy.statscollectors] INFO: Dumping Scrapy stats:
{'log_count/ERROR': 1,
 'spider_exceptions/KeyError': 1}
2026-03-01 12:00:01 [scrapy.core.engine] INFO: Spider closed (finished)
"""
NODE = """/app/fetch.js:3
throw new TypeError("x is not a function")
^

TypeError: x is not a function
    at Object.<anonymous> (/app/fetch.js:3:7)
    at node:internal/main/run_main_module:23:47 {
  code: 'ERR'
}

Node.js v18.19.0
"""
JAVA = """Exception in thread "main" java.lang.IllegalStateException: no page
\tat shop.Main.main(Main.java:5)
Caused by: java.net.UnknownHostException: shop.example
\t... 1 more
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/app/a.py", line 3, in <module>
  |     raise ExceptionGroup("two", [ValueError("1"), Odd("2")])
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: 1
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/app/a.py", line 2, in f
    | shop.Odd: 2
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            PYTHON + "ModuleNotFoundError: No module named 'bs4'\n",
            "ModuleNotFoundError: No module named 'bs4'",
        ),
        (
            PYTHON + "shop.errors.Banned: 403\nask the shop for a key\nand another note\n",
            "shop.errors.Banned: 403",
        ),
        (
            PYTHON
            + "KeyError: 1\n\nDuring handling of the above exception …:\n\n"
            + PYTHON
            + "OSError: 2",
            "OSError: 2",
        ),
        (
            PYTHON + "pydantic.ValidationError:\nprice: missing",
            "pydantic.ValidationError: price: missing",
        ),
        (
            '  File "a.py", line 1\n    f(\n     ^\nSyntaxError: never closed\n',
            "SyntaxError: never closed",
        ),
        (GROUP, "shop.Odd: 2"),
        (SCRAPY, "KeyError: 'price'"),
        ("2026-03-01 12:00:00 [shop] CRITICAL: no feed today\nbye\n", "no feed today"),
        ("12:00 INFO got ERROR 503 from the shop\nERROR:root:no feed\nbye", "root:no feed"),
        (NODE, "TypeError: x is not a function"),
        (
            "node:internal\n\nError [ERR_MODULE_NOT_FOUND]: no 'x'\n    at y",
            "Error [ERR_MODULE_NOT_FOUND]: no 'x'",
        ),
        (JAVA, "java.net.UnknownHostException: shop.example"),
        (
            "panic: entry in nil map\n\ngoroutine 1 [running]:\nexit status 2",
            "panic: entry in nil map",
        ),
        (
            "thread 'main' panicked at main.rs:2:5:\nno page\nnote: x",
            "thread 'main' panicked at main.rs:2:5: no page",
        ),
        ("Cloning…\nfatal: repository 'x' not found\nbye", "fatal: repository 'x' not found"),
        ("run.sh: line 1: jq: command not found\nbye", "run.sh: line 1: jq: command not found"),
        ("sh: 1: jq: not found\n", "sh: 1: jq: not found"),
        # nothing known: the last line with any text
        ("2026-03-01 [scrapy.core.engine] INFO: Closing spider (finished)\n", None),
        (
            'one\nGiving up after 3 tries\n\n[runner] It ended\n{"crawl_progress": {}}\n',
            "Giving up after 3 tries",
        ),
        ("", None),
        (" \n\t\r\n\0\0\n", None),
        # its format
        ("\x1b[1;31mValueError: red\x1b[0m\nbye", "ValueError: red"),
        ("\x1b]0;title\x07  5%\r 50%\r100% done\r\r\n", "100% done"),
        ("Value\0Error: N\0U\0L\u202e\x07!", "ValueError: NUL  !"),
        (log_tail("ok\nValueError: wide\n".encode("utf-16")), "ValueError: wide"),
        (log_tail("ValueError: wide".encode("utf-16-be")), "ValueError: wide"),
        (log_tail(b"x" * 1_000_000), "x" * 16_000),
    ],
)
def test_the_line_that_says_why(log: str, told: str | None) -> None:
    assert last_words(log) == told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        # Python: logging, Scrapy, Loguru, structlog, Celery, JSON
        ("ERROR:root:no feed", "root:no feed"),
        ("2026-03-01 12:00:00,123 - shop - ERROR - no feed", "no feed"),
        ("2026-03-01 12:00:00 [scrapy.core.engine] ERROR: no feed", "no feed"),
        ("2026-03-01 12:00:00.123 | ERROR    | shop:parse:12 - no feed", "shop:parse:12 - no feed"),
        ("2026-03-01T12:00:00Z [error    ] no feed  url=http://shop", "no feed  url=http://shop"),
        ("[2026-03-01 12:00:00,123: ERROR/MainProcess] no feed", "MainProcess] no feed"),
        ('{"levelname": "ERROR", "message": "no feed"}', "no feed"),
        (
            '{"level": "error", "event": "no feed", "exc_info": "Traceback …\\n  x\\nKeyError: 1"}',
            "no feed: KeyError: 1",
        ),
        # Node: console of Crawlee, bunyan, pino, winston, npm
        ("\x1b[31mERROR\x1b[39m PlaywrightCrawler: no feed", "PlaywrightCrawler: no feed"),
        (
            '{"name":"shop","level":50,"msg":"no feed","err":{"message":"refused","stack":"x"}}',
            "no feed: refused",
        ),
        ('{"level":60,"time":1,"pid":7,"msg":"no feed"}', "no feed"),
        ("[12:00:00.123] ERROR (77): no feed", "no feed"),
        ('{"level":"error","message":"no feed"}', "no feed"),
        ("error: no feed", "error: no feed"),
        ("npm ERR! no feed", "no feed"),
        ('{"timestamp":"x","logLevel":"error","context":"page","message":"no feed"}', "no feed"),
        # Go: slog, zap, logrus, zerolog, klog
        ('time=2026-03-01T12:00:00Z level=ERROR msg="no feed"', 'msg="no feed"'),
        ('time="2026-03-01T12:00:00Z" level=error msg="no feed"', 'msg="no feed"'),
        ("2026/03/01 12:00:00 ERROR no feed url=x", "no feed url=x"),
        (
            '{"level":"error","ts":1.5,"caller":"main.go:9","msg":"no feed","error":"refused"}',
            "no feed: refused",
        ),
        ("2026-03-01T12:00:00.000Z\tERROR\tshop/main.go:9\tno feed", "shop/main.go:9 no feed"),
        ("3:04PM ERR no feed url=x", "no feed url=x"),
        ("E0301 12:00:00.000000       7 main.go:9] no feed", "no feed"),
        # of clouds and syslog
        ('{"severity":"CRITICAL","message":"no feed"}', "no feed"),
        ('{"level":3,"message":"no feed"}', "no feed"),
    ],
)
def test_the_level_of_a_record_decides(line: str, told: str) -> None:
    less = {
        "ERROR": "INFO",
        "error": "info",
        "ERR!": "WARN",
        "ERR": "INF",
        "E0301": "I0301",
        "CRITICAL": "NOTICE",
    }
    quiet = line
    for loud, other in less.items():
        quiet = quiet.replace(f"{loud}", other) if quiet == line else quiet
    for loud, number in (('"level":50', 30), ('"level":60', 40), ('"level":3', 6)):
        quiet = quiet.replace(loud, f"{loud.partition(':')[0]}: {number}")
    assert quiet != line
    assert last_words(f"begin\n{line}\n{quiet}\n{quiet}\n") == told
    # Records of lower levels are neither errors nor guesses.
    assert last_words(f"begin\n{quiet}\n") is None


def reader(log: bytes) -> Read:
    return lambda at, most: log[at : at + most]


def error_in(log: str) -> Words | None:
    return last_error(reader(log.encode()), len(log.encode()))


def test_a_trace_of_a_record_with_a_lower_level_is_no_error_after_which_the_crawler_went_on() -> (
    None
):
    debug = (
        "2026-03-01 12:00:00 [retry] DEBUG: tried again\n"
        + PYTHON.partition("\n")[2]
        + "TimeoutError: slow\n"
    )
    on = "2026-03-01 12:00:01 [scrapy.core.engine] INFO: Closing spider (finished)\n"
    found = error_in(SCRAPY + debug + on)
    assert found is not None
    assert found.sure
    assert found.text == "KeyError: 'price'"
    alone = error_in(debug + on)
    assert alone is not None
    assert not alone.sure
    assert alone.text == "TimeoutError: slow"
    # At the end of a log, a trace is that of the process.
    crashed = error_in(SCRAPY + on + PYTHON + "OSError: gone\n")
    assert crashed is not None
    assert crashed.sure
    assert crashed.text == "OSError: gone"


NOISE = b"2026-03-01 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET https://shop.example/> (referer: None)\n"


@pytest.mark.parametrize("lines", [0, 100, 3_300, 12_000])
def test_an_error_far_before_the_end_is_found_and_kept(lines: int) -> None:
    log = NOISE * 5_000 + SCRAPY.encode() + NOISE * lines
    found = last_error(reader(log), len(log))
    assert found is not None
    assert log[found.at :].startswith(b"KeyError: 'price'")
    kept = kept_log(reader(log), len(log), failed=True)
    assert len(kept) == LOG_TAIL_BYTES
    assert last_words(log_tail(kept)) == "KeyError: 'price'"
    assert kept.endswith((SCRAPY.encode() + NOISE * lines)[-1000:])
    assert kept_log(reader(log), len(log), failed=False) == log[-LOG_TAIL_BYTES:]


@pytest.mark.parametrize("shift", range(0, 400, 7))
def test_no_window_hides_an_error(shift: int) -> None:
    after = NOISE * (1024 * 1024 // len(NOISE) - 3)
    log = NOISE * 20 + SCRAPY.encode() + b"." * shift + b"\n" + after
    found = last_error(reader(log), len(log))
    assert found is not None
    assert found.text == "KeyError: 'price'"


def test_the_search_has_a_bound() -> None:
    log = b"ERROR: too early\n" + NOISE * ((SEARCH_MAX + 2**20) // len(NOISE))
    assert last_error(reader(log), len(log)) is None


@given(st.text() | st.binary().map(log_tail) | st.text(alphabet="a.: \n\r\x1b[|+-ErrorTracebk'"))
def test_any_text_has_one_printable_bounded_line_or_none(log: str) -> None:
    line = last_words(log)
    assert line is None or (line.isprintable() and 0 < len(short(line)) <= ERROR_MAX)
    assert (line is None) <= (last_words(log, any_line=False) is None)


def test_two_long_lines_never_look_alike() -> None:
    lines = {f"KeyError: {'a' * 1_000}{n}{'z' * 1_000}" for n in range(500)}
    assert len({short(line) for line in lines}) == 500


def test_it_does_not_take_long() -> None:
    for text in (
        "a" * 16_000,
        "a." * 8_000,
        "a: " * 5_000,
        "thread '" * 2_000,
        "\x1b[" * 8_000,
        "ERROR" * 3_000,
    ):
        began = datetime.now(UTC)
        last_words("\n".join([text] * 20))
        assert (datetime.now(UTC) - began).total_seconds() < 5


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "OSError: https://bob:hunter22@shop/x?token=abcdefgh1",
            "OSError: https://bob:[redacted]@shop/x?token=[redacted]",
        ),
        (
            "ValueError: {'Authorization': 'Bearer abcdefgh1'}",
            "ValueError: {'Authorization': '[redacted]'}",
        ),
    ],
)
def test_secrets_go_before_it_is_cut(line: str, told: str) -> None:
    assert redaction.Redactor().text(last_words(line) or "") == told


SUCCEEDED = Change(1, TaskStatus.RUNNING, TaskStatus.SUCCEEDED, None, "finished")
FAILED = Change(1, TaskStatus.RUNNING, TaskStatus.FAILED, None, "failed")


@pytest.mark.parametrize(
    ("change", "end", "told"),
    [
        (FAILED, End(exit_code=1), "last"),
        (FAILED, End(exit_code=1, message="the start cannot be had"), "the start cannot be had"),
        (replace(FAILED, outcome="start_error"), End(1, finish_reason="start_error"), "last"),
        (FAILED, End(exit_code=139, signal=11), None),
        (FAILED, End(exit_code=0), None),
        (replace(FAILED, outcome="evicted"), End(exit_code=1), None),
        (SUCCEEDED, End(exit_code=0), None),
        (replace(FAILED, after=TaskStatus.CANCELLED, outcome="cancelled"), End(exit_code=1), None),
        (FAILED, None, None),
    ],
)
def test_only_what_failed_by_itself_has_an_error(
    change: Change, end: End | None, told: str | None
) -> None:
    assert error_of(change, end, "first\nlast\n") == told

"""The meaning of crawlers' exit codes and finish reasons: presets, entries, and defaults of an
installation.
"""

from __future__ import annotations

from typing import Any

import pytest

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.ends import NO_ENDS, PRESETS, Ends, Reading, reading
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.retries import DEFAULT, EndedTry, NextTry, next_try
from crawler_lifecycle.domain.task import End, read_end

SCRAPY = reading(NO_ENDS, scrapy=True)


def told(how: Reading, code: int, word: str | None = None) -> tuple[str, str, str]:
    """Return how the end of a command by itself is read."""
    ending = read_end(
        End(exit_code=code, finish_reason=word or ("finished" if code == 0 else None)), None, how
    )
    return str(ending.status), ending.outcome, ending.cause


def again(how: Reading, code: int) -> bool:
    """Return whether a failed command is retried by the default policy."""
    return isinstance(next_try(DEFAULT, EndedTry("failed", code, 0, "k"), 0, 10, how), NextTry)


@pytest.mark.parametrize("code", [1, 3, 4, 8, 11, 13, 14, 15, 17, 18, 75, 143, 255])
def test_an_exit_code_without_a_meaning_is_told_as_what_it_is(code: int) -> None:
    assert told(reading(NO_ENDS), code) == ("FAILED", "failed", f"The crawler failed, exit {code}")
    assert not again(reading(NO_ENDS), code)


def test_presets_of_programs() -> None:
    wget, curl = reading(Ends("wget")), reading(Ends("curl"))
    assert [code for code in range(1, 9) if again(wget, code)] == [4]
    assert told(wget, 8) == ("FAILED", "failed", "The crawler failed, exit 8")
    assert told(wget, 2) == (
        "FAILED",
        "failed",
        "The crawler failed for good (never retried), exit 2",
    )
    assert told(curl, 18) == ("FAILED", "failed", "The crawler failed, exit 18")
    assert again(curl, 18)
    assert again(curl, 6)
    assert not again(curl, 22)
    browsertrix = reading(Ends("browsertrix"))
    assert [told(browsertrix, code)[:2] for code in (3, 4, 14, 15, 17, 18)] == [
        ("FAILED", "diskusage_exceeded"), ("FAILED", "failed"), ("SUCCEEDED", "size_limit"),
        ("SUCCEEDED", "time_limit"), ("FAILED", "failed"), ("FAILED", "banned"),
    ]  # fmt: skip
    assert told(browsertrix, 15, "enough")[:2] == ("SUCCEEDED", "enough")
    for code in (11, 13, 143):
        assert told(browsertrix, code)[:2] == ("FAILED", "failed"), (
            "no code proves that somebody stopped it"
        )
    for name in PRESETS:
        assert (
            next_try(DEFAULT, EndedTry("failed", 127, 0, "k"), 0, 10, reading(Ends(name)))
            == "exit 127 is final"
        )


def test_an_entry_adds_codes_to_its_preset() -> None:
    how = reading(Ends("wget", success=[0, 8], final=[4], retry=[6]))
    assert told(how, 8) == (
        "SUCCEEDED",
        "finished",
        "The crawler ended itself with 'finished', exit 8",
    )
    assert told(how, 8, "mirror")[:2] == ("SUCCEEDED", "mirror")
    assert (again(how, 4), again(how, 6)) == (False, True)
    assert "never retried" in told(how, 2)[2]


def test_words_that_fail_a_run() -> None:
    how = reading(Ends(failed_words=["too_few_results", "budget_over"]), scrapy=True)
    for word in ("too_few_results", "budget_over", "start_error", "memusage_exceeded"):
        assert told(how, 0, word) == ("FAILED", word, f"The crawler failed with '{word}', exit 0")
    for word in ("finished", "closespider_errorcount", "too_few", "cancelled"):
        assert told(how, 0, word)[:2] == ("SUCCEEDED", word)
    assert told(SCRAPY, 0, "closespider_errorcount")[:2] == ("FAILED", "closespider_errorcount")
    assert told(SCRAPY, 0, "closespider_itemcount")[:2] == ("SUCCEEDED", "closespider_itemcount")
    every = reading(Ends(success=[8], failed_words=["*"]))
    assert told(every, 0)[:2] == told(every, 8)[:2] == ("SUCCEEDED", "finished")
    assert told(every, 0, "closespider_timeout")[:2] == ("FAILED", "closespider_timeout")


def test_a_word_of_a_command_proves_no_stop() -> None:
    cause = "The crawler reports that it was stopped, but nobody stopped it (exit 0)"
    assert told(reading(NO_ENDS), 0, "shutdown") == ("FAILED", "failed", cause)
    assert told(reading(NO_ENDS), 11, "shutdown")[:2] == ("FAILED", "failed")


def test_defaults_of_an_installation() -> None:
    ours = Ends("browsertrix", success=[8], failed_words=["no_results"])
    assert told(reading(NO_ENDS, ours), 8)[0] == told(reading(NO_ENDS, ours), 14)[0] == "SUCCEEDED"
    assert (
        told(reading(Ends("plain"), ours), 8)[0]
        == told(reading(Ends("plain"), ours), 14)[0]
        == "FAILED"
    )
    assert told(reading(Ends(final=[14]), ours), 14)[0] == "FAILED"
    assert told(reading(NO_ENDS, ours, scrapy=True), 0, "no_results")[0] == "FAILED"
    assert not again(reading(NO_ENDS, Ends(retry=[1]), scrapy=True), 1), (
        "its codes are verdicts of our runner"
    )


@pytest.mark.parametrize(("given", "error"), [
    ({"like": "wegt"}, "ends.like: 'wegt' is not allowed; give one of plain, scrapy, browsertrix, crawlee, wget, curl"),
    ({"success": [256]}, "ends.success: 256 is not allowed; "),
    ({"final": [0]}, "ends.final: 0 is not allowed; "),
    ({"retry": [True]}, "ends.retry: True is not allowed; "),
    ({"success": [8], "final": [8]}, "ends.success: 8 is not allowed; it is also in another list; remove it from one of them"),
    ({"final": [1] * 51}, "ends.final: 51 is not allowed; give at most 50"),
    ({"failed_words": [""]}, "ends.failed_words: '' is not allowed; "),
    ({"failed_words": ["x" * 201]}, "ends.failed_words: "),
])  # fmt: skip
def test_what_is_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Ends(**given)
    assert str(refused.value).startswith(error)


def test_scrapy_has_words_and_no_codes() -> None:
    crawler = CrawlerDefinition("shop", ends=Ends("scrapy", failed_words=["cancelled"]))
    assert crawler.ends.failed_words == ["cancelled"]
    for ends in (Ends("wget"), Ends(success=[8])):
        with pytest.raises(
            InvalidRequest, match=r"shop: ends: .* leave out all but failed_words for kind 'scrapy'"
        ):
            CrawlerDefinition("shop", ends=ends)
        CrawlerDefinition("mirror", CrawlerKind.COMMAND, command=["wget"], ends=ends)

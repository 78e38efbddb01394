"""What a request may set for a crawl: nothing that loads code, writes files or names an address."""

from __future__ import annotations

import math
import re

import pytest
import scrapy.settings.default_settings as scrapy_defaults
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings

from crawler_lifecycle.domain.crawlers.crawler import (
    CrawlerDefinition,
    check_tasks,
    effective_settings,
)
from crawler_lifecycle.domain.crawlers.settings import DEFAULT, VALUE_MAX
from crawler_lifecycle.domain.errors import InvalidRequest

ALL_OF_SCRAPY = sorted(name for name in vars(scrapy_defaults) if name.isupper())
CRAWLER = CrawlerDefinition(
    "shops",
    project="/crawlers",
    settings={"EXTENSIONS": '{"shops.ext.Own": 1}', "DOWNLOAD_DELAY": "2"},
    allow_settings=["SHOP_REGION"],
)


def _looks_like_code(value: object) -> bool:
    """Return whether a default of Scrapy's names a class, a file or an address, or contains such
    names.
    """
    if isinstance(value, dict):
        return any(_looks_like_code(part) for part in (*value, *value.values())) or not value
    if isinstance(value, str):
        return ("." in value and "/" not in value.partition(" ")[0]) or value.startswith(("/", "."))
    return isinstance(value, list | tuple) and any(isinstance(part, str) for part in value)


def test_no_setting_of_scrapy_that_holds_code_or_places_is_on_the_list() -> None:
    ends = (
        "_CLASS",
        "_DIR",
        "_FILE",
        "_MODULE",
        "_MODULES",
        "_STORE",
        "_STORAGE",
        "_HOST",
        "_PORT",
    )
    parts = ("MIDDLEWARES", "PIPELINES", "EXTENSIONS", "HANDLERS", "FEED", "RESOLVER")
    for name in ALL_OF_SCRAPY:
        named_so = name.endswith(ends) or any(part in name for part in parts)
        if named_so or _looks_like_code(getattr(scrapy_defaults, name)):
            assert name not in DEFAULT or name == "USER_AGENT", name


@pytest.mark.parametrize(
    "name",
    [
        "LOG_FILE",
        "LOG_FORMAT",
        "EXTENSIONS",
        "JOBDIR",
        "FEEDS",
        "SPIDER_MODULES",
        "HTTPCACHE_DIR",
        "FILES_STORE",
    ],
)
def test_what_writes_or_loads_is_refused_with_its_fix(name: str) -> None:
    with pytest.raises(
        InvalidRequest,
        match=rf"^settings\.{name}: '/x' may not be set by a request: .*allow_settings",
    ):
        check_tasks(CRAWLER, {}, {name: "/x"}, None)


def test_the_catalogue_adds_names_and_sets_what_it_likes() -> None:
    assert effective_settings(CRAWLER, {"SHOP_REGION": "de", "DOWNLOAD_DELAY": repr(1 / 30)}) == {
        **{
            "EXTENSIONS": '{"shops.ext.Own": 1}',
            "DOWNLOAD_DELAY": repr(1 / 30),
            "SHOP_REGION": "de",
        }
    }
    # A run that was rebuilt from its tasks contains the catalogue's own settings again.
    assert effective_settings(CRAWLER, CRAWLER.settings) == CRAWLER.settings
    for value in ('{"shops.ext.Other": 1}', ""):
        with pytest.raises(InvalidRequest, match=r"^settings\.EXTENSIONS: "):
            effective_settings(CRAWLER, {"EXTENSIONS": value})
    with pytest.raises(InvalidRequest, match=r"^settings\.SHOP_REGION: .*printable"):
        effective_settings(CRAWLER, {"SHOP_REGION": "d\ne"})


@pytest.mark.parametrize("name", ["", "log file", "download_delay", "A" * 101])
def test_only_names_of_settings_are_allowed(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^shops: allow_settings\[0\]: "):
        CrawlerDefinition("shops", project="/crawlers", allow_settings=[name])


@given(
    st.sampled_from(sorted(DEFAULT)),
    st.text(max_size=30) | st.floats().map(str) | st.integers().map(str),
)
def test_scrapy_reads_every_value_that_is_taken_and_as_what_it_is(name: str, value: str) -> None:
    rule = DEFAULT[name]
    if not rule.holds(value):
        with pytest.raises(InvalidRequest, match=rf"^settings\.{name}: .* is not allowed; give "):
            effective_settings(CRAWLER, {name: value})
        return
    taken = effective_settings(CRAWLER, {name: value})[name]
    read = Settings({name: taken})
    if told := re.fullmatch(r"give a (whole )?number from (\S+) to (\S+)", rule.fix):
        number = read.getint(name) if told[1] else read.getfloat(name)
        assert math.isfinite(number)
        assert float(told[2]) <= number <= float(told[3])
    elif rule.fix.startswith("give status codes"):
        assert all(100 <= int(code) <= 599 for code in read.getlist(name))
    elif " or " in rule.fix:
        assert taken in re.split(", | or ", rule.fix.removeprefix("give "))
        assert name == "LOG_LEVEL" or read.getbool(name) in (True, False)
    else:
        assert "printable" in rule.fix
        assert taken.isprintable()
        assert len(taken) <= VALUE_MAX

"""Settings that a request may set for a run: an allow-list of numbers, switches and short strings.

Some Scrapy settings import a class, write a file or open a port. Users who start runs must not be
able to do this, so the list contains only harmless settings. A catalogue entry can allow further
names (``allow_settings``). The settings in a catalogue entry are not checked, because its author
can run any code anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from crawler_lifecycle.domain.errors import InvalidRequest

#: The maximum length of a value.
VALUE_MAX = 1000
#: The pattern for setting names in Scrapy and Python projects.
NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
SWITCH_VALUES = ("0", "1", "true", "false", "True", "False")
LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed values for a setting, and the advice that follows a wrong value."""

    holds: Callable[[str], bool]
    fix: str


def number(least: float, most: float, *, whole: bool = True) -> Rule:
    """Return the rule that allows numbers within these bounds, in a format that Scrapy reads."""
    pattern = re.compile(r"-?[0-9]{1,15}" if whole else r"-?[0-9]{1,15}(\.[0-9]{1,20})?")
    kind = "a whole number" if whole else "a number"
    return Rule(
        lambda value: pattern.fullmatch(value) is not None and least <= float(value) <= most,
        f"give {kind} from {least:.0f} to {most:.0f}",
    )


def choice(*words: str) -> Rule:
    """Return the rule that allows only these words."""
    return Rule(lambda value: value in words, f"give {', '.join(words[:-1])} or {words[-1]}")


def text(most: int = VALUE_MAX) -> Rule:
    """Return the rule that allows one line of printable characters."""
    return Rule(
        lambda value: len(value) <= most and value.isprintable(),
        f"give at most {most} printable characters",
    )


_CODES = re.compile(r"([1-5][0-9]{2}(,[1-5][0-9]{2})*)?")


def _by_rule(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return the rules by name.

    Each key of ``rules`` is a list of names separated by spaces.
    """
    return {name: rule for names, rule in rules.items() for name in names.split()}


#: The settings that every request may set. None of them names a class, a path or an address.
DEFAULT: Mapping[str, Rule] = _by_rule({
    "AUTOTHROTTLE_ENABLED COMPRESSION_ENABLED COOKIES_ENABLED DOWNLOAD_FAIL_ON_DATALOSS "
    "HTTPERROR_ALLOW_ALL METAREFRESH_ENABLED RANDOMIZE_DOWNLOAD_DELAY REDIRECT_ENABLED "
    "REFERER_ENABLED RETRY_ENABLED ROBOTSTXT_OBEY": choice(*SWITCH_VALUES),
    "CLOSESPIDER_ERRORCOUNT CLOSESPIDER_ITEMCOUNT CLOSESPIDER_PAGECOUNT "
    "CLOSESPIDER_PAGECOUNT_NO_ITEM CLOSESPIDER_TIMEOUT_NO_ITEM "
    "DEPTH_LIMIT METAREFRESH_MAXDELAY": number(0, 10**9),
    "AUTOTHROTTLE_MAX_DELAY AUTOTHROTTLE_START_DELAY DNS_TIMEOUT DOWNLOAD_DELAY DOWNLOAD_TIMEOUT "
    "LOGSTATS_INTERVAL": number(0, 86_400, whole=False),
    "CONCURRENT_ITEMS CONCURRENT_REQUESTS CONCURRENT_REQUESTS_PER_DOMAIN": number(1, 1000),
    "DEPTH_PRIORITY RETRY_PRIORITY_ADJUST": number(-1000, 1000),
    "DOWNLOAD_MAXSIZE DOWNLOAD_WARNSIZE": number(0, 2**40),
    "REDIRECT_MAX_TIMES RETRY_TIMES": number(0, 1000),
    "AUTOTHROTTLE_TARGET_CONCURRENCY": number(0, 1000, whole=False),
    "CLOSESPIDER_TIMEOUT": number(0, 10**9, whole=False),
    "LOG_LEVEL": choice(*LOG_LEVELS),
    "RETRY_HTTP_CODES": Rule(
        lambda value: len(value) <= VALUE_MAX and _CODES.fullmatch(value) is not None,
        "give status codes separated by commas, such as 500,502",
    ),
    "ROBOTSTXT_USER_AGENT": text(200),
    "URLLENGTH_LIMIT": number(0, 100_000),
    "USER_AGENT": text(500),
})  # fmt: skip
_ANY = text()


def check_settings(
    settings: Mapping[str, str], own: Mapping[str, str], allowed: Collection[str]
) -> None:
    """Raise ``InvalidRequest`` for settings that a request may not set. ``own`` contains the
    crawler's settings in the catalogue, and ``allowed`` contains the names in ``allow_settings``. A
    setting that equals the catalogue's own is always allowed, because the request of a run that was
    restored from its tasks contains such settings.
    """
    for name, value in settings.items():
        if own.get(name) == value:
            continue
        rule = DEFAULT.get(name, _ANY if name in allowed else None)
        if rule is None:
            raise InvalidRequest(
                f"settings.{name[:100]}: {value[:100]!r} may not be set by a request: it may name "
                "code, files or "
                "addresses; set it in the catalogue ('settings' of the crawler), or have its name "
                "added to "
                "'allow_settings' there"
            )
        if not rule.holds(value):
            raise InvalidRequest(f"settings.{name}: {value[:100]!r} is not allowed; {rule.fix}")


def check_allowed(names: Collection[str]) -> None:
    """Raise ``InvalidRequest`` for an entry in ``allow_settings`` that is not the name of a
    setting.
    """
    for n, name in enumerate(names):
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                f"allow_settings[{n}]: {name[:100]!r} is not allowed; give the name of a setting, "
                "such as SHOP_REGION"
            )

"""Display of values in web pages: strings, times, durations, numbers and table cells; and the same
cells as plain text, for CSV.

Any text can come from an attacker. Invisible characters are made visible, and all markup escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from crawler_lifecycle.domain.status_words import shown_word
from crawler_lifecycle.domain.waiting import MARK
from crawler_lifecycle.subjects import (
    At,
    Cell,
    CellLine,
    Count,
    JsonDetails,
    Lag,
    Link,
    Note,
    Size,
    Took,
    Word,
    plain,
)

#: Characters that are invisible or change the text direction. The web UI shows their code points
#: instead.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
#: A time in the form in which ``waiting`` writes it. If " ago" follows, it is shown as a moment,
#: otherwise as a duration.
_MOMENT = re.compile(rf"{MARK}(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{{6}})?\+00:00){MARK}( ago)?")


def visible(value: Any) -> Any:
    """Return a value for a template: a dash for ``None``, and a string with its invisible
    characters made visible.
    """
    if value is None:
        return "–"
    if isinstance(value, Markup):
        return value
    # These are JSON escapes, so that JSON text keeps its meaning.
    return _UNSEEN.sub(_escaped, value) if isinstance(value, str) else value


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def exact(value: str) -> Markup:
    """Return an escaped text for a form field.

    Invisible characters stay, because the text must be sent back unchanged.
    """
    return escape(value)


def span(seconds: float) -> str:
    """Return a duration in words, with one or two units."""
    left = max(int(seconds), 0)
    if left < 120:
        return f"{left} s"
    for unit, size, smaller, less in (
        ("min", 60, "s", 1),
        ("h", 3600, "min", 60),
        ("d", 86400, "h", 3600),
    ):
        if left < size * {"min": 120, "h": 48, "d": 10**9}[unit]:
            rest = left % size // less
            return f"{left // size} {unit}" + (
                f" {rest} {smaller}" if rest and left < 10 * size else ""
            )
    return f"{left // 86400} d"


def step(minutes: float) -> str:
    """Return the time between two checks in words: ``1.2 s``, ``15 min``, ``1.5 min``."""
    return f"{minutes * 60:.3g} s" if minutes < 1 else f"{minutes:.10g} min"


def moment(value: datetime | None, now: datetime) -> Markup:
    """Return a time as its age, with the time itself in the title."""
    if value is None:
        return Markup("–")
    passed = (now - value).total_seconds()
    return _time_tag("<time", value, f"in {span(-passed)}" if passed < 0 else f"{span(passed)} ago")


def lasting(begin: datetime, now: datetime) -> Markup:
    """Return the time since ``begin`` in words, which the page updates."""
    return _time_tag("<time data-for", begin, span((now - begin).total_seconds()))


def _time_tag(tag: str, value: datetime, words: str) -> Markup:
    text = value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return Markup(tag + ' datetime="{}" title="{}">{}</time>').format(text, title, words)  # noqa: S704


def between(begin: datetime | None, end: datetime | None, now: datetime) -> str | Markup:
    """Return the time from ``begin`` to ``end``, or to now."""
    if begin is None:
        return "–"
    return lasting(begin, now) if end is None else span((end - begin).total_seconds())


def aging(sentence: str | None, now: datetime) -> Markup | None:
    """Return a sentence about waiting, in which times become ages that the page updates."""
    if sentence is None:
        return None
    text = Markup("")
    end = 0
    for found in _MOMENT.finditer(sentence):
        since = datetime.fromisoformat(found[1])
        text += escape(visible(sentence[end : found.start()])) + (moment if found[2] else lasting)(
            since, now
        )
        end = found.end()
    return text + escape(visible(sentence[end:]))


def cell(value: Cell, now: datetime) -> str | Markup:
    """Return the HTML of a table cell."""
    match value:
        case Markup():
            return value
        case At(time):
            return moment(_time(time), now)
        case Took(begin, end):
            return between(_time(begin), _time(end), now)
        case Lag(ms):
            return "–" if ms is None else span(ms / 1000)
        case Count(count, bad):
            return cell(Note(number(count), "bad"), now) if bad else number(count)
        case Size(count):
            return size(count)
        case Link(text, path):
            return Markup('<a href="{}">{}</a>').format(path, visible(str(text)))
        case Word(text, bad, why):
            style = "flag bad" if bad else "status " + str(text).lower().replace(" ", "-")
            parts = [Note(text, style), *(Note(reason, "why") for reason in why)]
            return cell(CellLine(parts), now)
        case Note(text, style):
            return Markup('<span class="{}">{}</span>').format(style, aging(str(text), now))
        case CellLine(parts):
            return Markup(" ").join(cell(part, now) for part in _present(parts)) or "–"
        case JsonDetails(document):
            words = Markup("<details><summary>show</summary><pre>{}</pre></details>")
            return words.format(visible(pretty(document)))
    return str(visible(plain(value) or None))


def cell_text(value: Any) -> str:
    """Return a cell as plain text, with exact times in UTC and durations in seconds."""
    match value:
        case Markup():
            return value.striptags()
        case At(time):
            exact_time = _time(time)
            return exact_time.astimezone(UTC).isoformat(timespec="seconds") if exact_time else ""
        case Took(begin, end) if begin and end:
            return f"{(_time(end) - _time(begin)).total_seconds():.0f}"
        case Took():
            return ""
        case Lag(ms):
            return "" if ms is None else f"{ms / 1000:g}"
        case Count(count) | Size(count):
            return "" if count is None else str(count)
        case Note(text) | Link(text):
            return str(visible(_MOMENT.sub(r"\1", str(text))))
        case Word(text, _, why):
            return cell_text(CellLine([text, *why]))
        case CellLine(parts):
            return " ".join(map(cell_text, _present(parts)))
        case JsonDetails(document):
            return json.dumps(document, ensure_ascii=False, sort_keys=True, default=str)
    return str(visible(plain(value)))


def cell_order(value: Any) -> tuple[int, Any]:
    """Return a key that sorts the cells of one column: numbers and times by their value, strings by
    their letters, and empty cells last.
    """
    match value:
        case Count(count) | Lag(count) | Size(count) if count is not None:
            return 0, count
        case int() | float():
            return 0, value
        case Link(int() as number_of_it):
            return 0, number_of_it
        case CellLine(parts) if isinstance(first := next(iter(_present(parts)), None), int | Link):
            return cell_order(first)
        case Took(begin, end) if begin and end:
            return 0, (_time(end) - _time(begin)).total_seconds()
    text = cell_text(value)
    return (1, text.casefold()) if text else (2, "")


def _present(parts: Sequence[Any]) -> list[Any]:
    """Return the parts that are not empty."""
    return [part for part in parts if getattr(part, "text", part) not in (None, "", At(None))]


def _time(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def number(value: float | None) -> str:
    """Return a number with thin spaces between thousands."""
    if value is None:
        return "–"
    return (
        f"{value:,}".replace(",", "\u202f")
        if isinstance(value, int)
        else f"{value:,.1f}".replace(",", "\u202f")
    )


def run_pill(run: Any) -> Markup:
    """Return the state of a run or manager as a pill."""
    return pill(shown_word(vars(run)))


def pill(word: str) -> Markup:
    """Return a pill, whose class is the word."""
    return Markup('<span class="pill {}">{}</span>').format(word.replace(" ", "-"), word)


def size(value: int | None) -> str:
    """Return a number of bytes in a suitable unit."""
    if value is None:
        return "–"
    left = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if left < 1024 or unit == "GiB":
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1024
    raise AssertionError


def pretty(value: object) -> str:
    """Return a value as readable JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, default=str)

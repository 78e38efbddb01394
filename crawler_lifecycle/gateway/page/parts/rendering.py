"""From values to HTML: the templates' environment, and words for times and numbers.

Every text may be a stranger's. Autoescape holds in every template, what cannot be seen is made visible before it, and
no template marks anything as safe.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from crawler_lifecycle.domain.waiting import MARK
from crawler_lifecycle.gateway.access.operations import caller_name, caller_role, may
from crawler_lifecycle.gateway.streams.feed import build

from .assets import accepts_gzip, address

#: Pages smaller than this are sent as they are.
_ZIP_FROM = 1024
#: What no reader sees, or what turns the rest of a line around: shown as its number.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
#: As ``waiting`` writes a moment: what follows tells which words its age has.
_MOMENT = re.compile(rf"{MARK}(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{{6}})?\+00:00){MARK}( ago)?")
#: Pages that the head of each page leads to: address, word, and what one must be allowed to do for it.
NAVIGATION = (
    ("/", "Runs", "showRuns"),
    ("/runs/new", "Start a run", "pressStart"),
    ("/crawlers", "Crawlers", "showCrawlers"),
    ("/managers", "Managers", "showManagers"),
    ("/graphs", "Graphs", "showGraphs"),
    ("/schedules", "Schedules", "showSchedules"),
    ("/corrections", "Corrections", "showCorrections"),
    ("/audit", "Audit", "showAudit"),
    ("/webhooks", "Webhooks", "showWebhooks"),
)


def visible(value: Any) -> Any:
    """What a template writes of a value: a dash for nothing, and of a text what can be seen."""
    if value is None:
        return "–"
    if isinstance(value, Markup):
        return value
    # As JSON writes it, so that what was JSON means the same afterwards.
    return _UNSEEN.sub(_escaped, value) if isinstance(value, str) else value


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def exact(value: str) -> Markup:
    """A text that comes back in a form, so nothing in it may be made visible."""
    return escape(value)


def span(seconds: float) -> str:
    """A length of time in words: the two largest units that matter, or one."""
    left = max(int(seconds), 0)
    if left < 120:
        return f"{left} s"
    for unit, size, smaller, less in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86400, "h", 3600)):
        if left < size * {"min": 120, "h": 48, "d": 10**9}[unit]:
            rest = left % size // less
            return f"{left // size} {unit}" + (f" {rest} {smaller}" if rest and left < 10 * size else "")
    return f"{left // 86400} d"


def rung(minutes: float) -> str:
    """A gap between two checks: ``1.2 s``, ``15 min``, ``1.5 min``."""
    return f"{minutes * 60:.3g} s" if minutes < 1 else f"{minutes:.10g} min"


def moment(value: datetime | None, now: datetime) -> Markup:
    """A time as its age, with the time itself in the title."""
    if value is None:
        return Markup("–")
    passed = (now - value).total_seconds()
    words = f"in {span(-passed)}" if passed < 0 else f"{span(passed)} ago"
    text = value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(text, title, words)


def lasting(begin: datetime, now: datetime) -> Markup:
    """For how long something lasts by now; the page counts on."""
    text = begin.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{begin.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    words = span((now - begin).total_seconds())
    return Markup('<time data-for datetime="{}" title="{}">{}</time>').format(text, title, words)


def between(begin: datetime | None, end: datetime | None, now: datetime) -> str | Markup:
    """How long something took, or takes by now."""
    if begin is None:
        return "–"
    return lasting(begin, now) if end is None else span((end - begin).total_seconds())


def aging(sentence: str | None, now: datetime) -> Markup | None:
    """A sentence about what something waits for, with ages that the page counts."""
    if sentence is None:
        return None
    text, end = Markup(""), 0
    for found in _MOMENT.finditer(sentence):
        since = datetime.fromisoformat(found[1])
        text += escape(visible(sentence[end : found.start()])) + (moment if found[2] else lasting)(since, now)
        end = found.end()
    return text + escape(visible(sentence[end:]))


def number(value: float | None) -> str:
    """A number with thin spaces between thousands."""
    if value is None:
        return "–"
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else f"{value:,.1f}".replace(",", "\u202f")


def size(value: int | None) -> str:
    """A number of bytes in the unit that fits."""
    if value is None:
        return "–"
    left = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if left < 1024 or unit == "GiB":
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1024
    raise AssertionError


def pretty(value: object) -> str:
    """A value as JSON, for people."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, default=str)


def query(values: Mapping[str, Any]) -> str:
    """The part of an address after its path, of those values that say something."""
    said = {name: value for name, value in values.items() if value not in (None, "", [], False)}
    return f"?{urlencode(said, doseq=True)}" if said else ""


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"moment": moment, "between": between, "number": number, "size": size, "pretty": pretty}
    made.filters |= {"aging": aging, "span": span, "rung": rung, "exact": exact}
    made.globals |= {"asset": address, "query": query, "may": may}
    return made


_TEMPLATES = _environment()


def html(template: str, **values: Any) -> str:
    """A template with these values, and with who reads it."""
    who = {"caller": caller_name(), "role": caller_role(), "navigation": NAVIGATION, "build": build()}
    return _TEMPLATES.get_template(template).render(**who, **values)


def answer(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A whole page, compressed where that is understood."""
    body = html(template, path=request.url.path, **values).encode()
    # Back shows a form as it was sent, with its key, so that pressing again does nothing twice.
    headers = {"Vary": "Accept-Encoding", "Cache-Control": "private, no-cache"}
    if len(body) >= _ZIP_FROM and accepts_gzip(request):
        body = gzip.compress(body, 5, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, "text/html")

"""Rendering of web pages: asset files, templates, and the display of times and numbers.

Any text can come from an attacker. All templates use autoescape, invisible characters are made
visible before that, and no template marks a text as safe.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import secrets
import uuid
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import BaseModel
from starlette.responses import Response

from crawler_lifecycle.domain.status_words import state_word
from crawler_lifecycle.domain.waiting import MARK
from crawler_lifecycle.gateway.access.operations import caller_name, caller_role, may
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.subjects import (
    SUBJECTS,
    At,
    Cell,
    Column,
    Count,
    Lag,
    Link,
    Took,
    Word,
    deletion_words,
    plain,
    status_word,
)
from crawler_lifecycle.web.problems import Problem

FOLDER = Path(__file__).parents[1] / "assets"
PREFIX = "/page/assets/"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One asset file, in each encoding in which it is sent."""

    name: str
    """The file name with a hash of its content."""
    media_type: str
    plain: bytes
    zipped: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return all asset files by their names without the hash."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            plain = path.read_bytes()
            digest = hashlib.sha256(plain).hexdigest()[:16]
            name = f"{path.stem}.{digest}{path.suffix}"
            found[path.name] = Asset(
                name, _TYPES[path.suffix], plain, gzip.compress(plain, 9, mtime=0)
            )
    return found


def address(name: str) -> str:
    """Return the web address of an asset file. Raises ``KeyError`` for an unknown name."""
    return PREFIX + assets()[name].name


def accepts_gzip(request: Request) -> bool:
    """Return whether the client accepts a gzip response."""
    coding = [
        part.split(";") for part in request.headers.get("accept-encoding", "").lower().split(",")
    ]
    return any(
        name[0].strip() == "gzip" and "q=0" not in [p.strip() for p in name[1:]] for name in coding
    )


def add_assets(app: FastAPI) -> None:
    """Add the route of the asset files."""
    served = {asset.name: asset for asset in assets().values()}

    @app.get(PREFIX + "{name}")
    async def get_asset(name: str, request: Request) -> Response:
        """Send an asset file. No token is needed, because the login page uses these files."""
        asset = served.get(name)
        if asset is None:
            raise Problem(
                404, "not_found", f"{name[:100]}: this build has no such file; load the page again"
            )
        if accepts_gzip(request):
            return Response(
                asset.zipped,
                media_type=asset.media_type,
                headers={**_FOR_EVER, "Content-Encoding": "gzip"},
            )
        return Response(asset.plain, media_type=asset.media_type, headers=_FOR_EVER)


#: Smaller pages, measured in bytes, are sent uncompressed.
_ZIP_FROM = 1024
#: Characters that are invisible or change the text direction. The web UI shows their code points
#: instead.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
#: A time in the form in which ``waiting`` writes it. If " ago" follows, it is shown as a moment,
#: otherwise as a duration.
_MOMENT = re.compile(rf"{MARK}(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{{6}})?\+00:00){MARK}( ago)?")
#: A local time as browsers write it.
LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?")
#: The operations of the pages that update automatically.
MOVES = {
    "showFleet",
    "showParts",
    "showRuns",
    "showRun",
    "showLog",
    "showPools",
    "showManagers",
    "showManager",
    "showGraphs",
    "showGraph",
    "showSchedules",
    "showSchedule",
    "showWebhooks",
    "showWebhook",
    "showCorrections",
    "showAudit",
    "showCrawler",
    "showIncidents",
    "showIncident",
}
#: The key in a request's scope that marks a request for only the main part of a page, for all its
#: readers.
ALONE = "lifecycle.page.alone"
#: The placeholder for the key of forms in rendered text.
NO_KEY = secrets.token_hex(16)
#: The placeholder for the address of the page's stream.
_STREAM = secrets.token_hex(16)
#: The mark around parts that are updated separately. It is random and never sent, so that no text
#: can contain it.
_PART = secrets.token_hex(8)
_END = Markup("<!--{}-->").format(_PART)
_PARTS = re.compile(f"<!--{_PART} ([a-z0-9-]+)-->(.*?)<!--{_PART}-->", re.DOTALL)
#: The ages in words, which differ between two renderings of the same content.
_AGES = re.compile(r'(?<=">)[^<]*(?=</time>)')
#: The maximum number of marks of parts in the address of a stream.
SEEN_MAX = 250


def visible(value: Any) -> Any:
    """Return a value for a template: a dash for ``None``, and a text with its invisible characters
    made visible.
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
        case At(time):
            return moment(_time(time), now)
        case Took(begin, end):
            return between(_time(begin), _time(end), now)
        case Lag(ms):
            return "–" if ms is None else span(ms / 1000)
        case Count(count):
            return number(count)
        case Link(text, path):
            return Markup('<a href="{}">{}</a>').format(path, visible(str(text)))
        case Word(text, bad, why):
            word = Markup('<span class="{}">{}</span>').format(
                "flag bad" if bad else f"status {text}".lower(), text
            )
            return word + Markup("").join(
                Markup('<div class="why" title="{0}">{0}</div>').format(visible(one)) for one in why
            )
    return str(visible(plain(value) or None))


def _time(value: Any) -> datetime | None:
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


def query(values: Mapping[str, Any]) -> str:
    """Return the query of a web address, with all values that are not empty."""
    said = {name: value for name, value in values.items() if value not in (None, "", [], False)}
    return f"?{urlencode(said, doseq=True)}" if said else ""


def next_page(filters: BaseModel, token: str | None, *without: str) -> str | None:
    """Return the address of the next page of a list with the same filters, or ``None`` if there is
    none.
    """
    asked = filters.model_dump(mode="json", exclude_defaults=True, exclude={"page_token", *without})
    return query({**asked, "page_token": token}) if token else None


def columns(given: Sequence[Column]) -> list[Column]:
    """Return the columns that web pages show."""
    return [one for one in given if "page" in one.on]


def part(name: str) -> Markup:
    """Return the mark before a part that is updated separately, which is the element with this id.

    ``end`` follows the part.
    """
    return Markup("<!--{} {}-->").format(_PART, name)


def parts_of(text: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return the main part of a page without marks, and each part with its checksum. The frame has
    the name ``""``.

    The checksum changes when the visible content changes, and is the same on every gateway. It
    excludes ages in words, which the page itself updates, and the keys of forms.
    """
    whole = text[text.index("<main ") : text.index("</main>") + len("</main>")]
    parts = {"": _PARTS.sub(r"<\1>", whole), **dict(_PARTS.findall(whole))}
    marked = {name: (_mark(f"{name} {found}"), found) for name, found in parts.items()}
    return _PARTS.sub(r"\2", whole), marked


def _mark(text: str) -> str:
    said = _AGES.sub("", text).replace(NO_KEY, "")
    return f"{zlib.crc32(said.encode('utf-8', 'surrogatepass')):08x}"


def _stream(request: Request, text: str) -> str:
    """Return the address of the stream for a page that was rendered as ``text``."""
    _, parts = parts_of(text)
    seen = "".join([mark for mark, _ in parts.values()][:SEEN_MAX])
    said = {
        "path": request.scope["path"],
        "query": request.scope["query_string"].decode("latin-1"),
        "seen": seen,
    }
    return "/page/events" + query(said)


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
    made.filters |= {
        "status_word": lambda row: status_word(vars(row)),
        "state_word": state_word,
        "deletion": lambda one: deletion_words(one.model_dump(mode="json")),
        "moment": moment,
        "between": between,
        "number": number,
        "size": size,
        "pretty": pretty,
        "aging": aging,
        "span": span,
        "step": step,
        "exact": exact,
        "cell": cell,
    }
    made.tests["local_time"] = LOCAL_TIME.fullmatch
    made.globals |= {
        "asset": address,
        "query": query,
        "may": may,
        "part": part,
        "subjects": SUBJECTS,
        "columns": columns,
        "end": _END,
        "key": NO_KEY,
        "stream": _STREAM,
    }
    return made


_TEMPLATES = _environment()
_NO_COUNTS = Counter[str]()


def html(template: str, **values: Any) -> str:
    """Render a template with these values, and with the name and the role of the caller."""
    who = {"caller": caller_name(), "role": caller_role(), "build": release()}
    return _TEMPLATES.get_template(template).render(
        who | {"layout": "base.html", "moves": False, "rail": _NO_COUNTS} | values
    )


def answer(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a whole page, compressed if the client accepts that, or only its main part for a
    stream.
    """
    alone = ALONE in request.scope
    moves = getattr(request.scope.get("route"), "operation_id", None) in MOVES
    layout = "main.html" if alone else "base.html"
    rail = getattr(request.state, "rail", _NO_COUNTS)
    own = {"path": request.url.path, "layout": layout, "moves": moves, "rail": rail}
    text = html(template, **own, **values)
    if alone:
        return Response(text, status, media_type="text/html")
    if moves:
        text = text.replace(_STREAM, escape(_stream(request, text)))
    body = _PARTS.sub(r"\2", text).replace(NO_KEY, uuid.uuid4().hex).encode()
    # The Back button then shows a form with its old key, so that the same action is not done twice.
    headers = {"Vary": "Accept-Encoding", "Cache-Control": "private, no-cache"}
    if len(body) >= _ZIP_FROM and accepts_gzip(request):
        body = gzip.compress(body, 5, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, "text/html")

"""From values to HTML: files that pages need, the templates, and words for times and numbers.

Every text may be a stranger's. Autoescape holds in every template, what cannot be seen is made visible before it, and
no template marks anything as safe.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import secrets
import uuid
import zlib
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

from crawler_lifecycle.domain.waiting import MARK
from crawler_lifecycle.gateway.access.operations import caller_name, caller_role, may
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.subjects import SUBJECTS, At, Cell, Column, Count, Lag, Link, Took, Word, deletion_words, plain
from crawler_lifecycle.web.problems import Problem

FOLDER = Path(__file__).parents[1] / "assets"
PREFIX = "/page/assets/"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    name: str
    """With its hash."""
    media_type: str
    plain: bytes
    zipped: bytes


@cache
def assets() -> dict[str, Asset]:
    """Every file by its own name, without the hash."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            plain = path.read_bytes()
            digest = hashlib.sha256(plain).hexdigest()[:16]
            name = f"{path.stem}.{digest}{path.suffix}"
            found[path.name] = Asset(name, _TYPES[path.suffix], plain, gzip.compress(plain, 9, mtime=0))
    return found


def address(name: str) -> str:
    """The address of a file. Raises ``KeyError`` for one that is not there."""
    return PREFIX + assets()[name].name


def accepts_gzip(request: Request) -> bool:
    """Return whether a compressed answer will be understood."""
    coding = [part.split(";") for part in request.headers.get("accept-encoding", "").lower().split(",")]
    return any(name[0].strip() == "gzip" and "q=0" not in [p.strip() for p in name[1:]] for name in coding)


def add_assets(app: FastAPI) -> None:
    """Add the route of the files."""
    served = {asset.name: asset for asset in assets().values()}

    @app.get(PREFIX + "{name}", operation_id="getAsset", include_in_schema=False)
    async def get_asset(name: str, request: Request) -> Response:
        """One of our files; open to everybody, as the login is."""
        asset = served.get(name)
        if asset is None:
            raise Problem(404, "not_found", f"{name[:100]}: no such file in this build; load the page again")
        if accepts_gzip(request):
            return Response(
                asset.zipped, media_type=asset.media_type, headers={**_FOR_EVER, "Content-Encoding": "gzip"}
            )
        return Response(asset.plain, media_type=asset.media_type, headers=_FOR_EVER)


#: Pages smaller than this are sent as they are.
_ZIP_FROM = 1024
#: What no reader sees, or what turns the rest of a line around: shown as its number.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
#: As ``waiting`` writes a moment: what follows tells which words its age has.
_MOMENT = re.compile(rf"{MARK}(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{{6}})?\+00:00){MARK}( ago)?")
#: The pages that move while somebody looks at them.
MOVES = {
    *("showRuns", "showRun", "showCrawlers", "showManagers", "showManager", "showGraphs", "showGraph"),
    *("showSchedules", "showSchedule", "showWebhooks", "showWebhook", "showCorrections", "showAudit"),
}
#: In a request's scope: its main part alone is wanted, which is shared by all who look at it.
ALONE = "lifecycle.page.alone"
#: The key of forms until somebody gets them, and the address of the stream until the page is whole.
NO_KEY, _STREAM = secrets.token_hex(16), secrets.token_hex(16)
#: Around parts that move alone. Nobody else can write it: no page shows it.
_PART = secrets.token_hex(8)
_END = Markup("<!--{}-->").format(_PART)
_PARTS = re.compile(f"<!--{_PART} ([a-z0-9-]+)-->(.*?)<!--{_PART}-->", re.DOTALL)
#: What differs between two renderings of the same: words for ages.
_AGES = re.compile(r'(?<=">)[^<]*(?=</time>)')
#: Marks of parts that an address of a stream holds.
_SEEN_MAX = 250
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
    """The form in which a template writes a value: a dash for nothing, and of a text what can be seen."""
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
    return _time_tag("<time", value, f"in {span(-passed)}" if passed < 0 else f"{span(passed)} ago")


def lasting(begin: datetime, now: datetime) -> Markup:
    """For how long something lasts by now; the page counts on."""
    return _time_tag("<time data-for", begin, span((now - begin).total_seconds()))


def _time_tag(tag: str, value: datetime, words: str) -> Markup:
    text = value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return Markup(tag + ' datetime="{}" title="{}">{}</time>').format(text, title, words)  # noqa: S704 - ours


def between(begin: datetime | None, end: datetime | None, now: datetime) -> str | Markup:
    """The time that something took, or has taken by now."""
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


def cell(value: Cell, now: datetime) -> str | Markup:
    """A cell of the table of subjects."""
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
            word = Markup('<span class="{}">{}</span>').format("flag bad" if bad else f"status {text}".lower(), text)
            return word + Markup("").join(Markup('<div class="why">{}</div>').format(visible(one)) for one in why)
    return str(visible(plain(value) or None))


def _time(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


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


def next_page(filters: BaseModel, token: str | None, *without: str) -> str | None:
    """The address of the next page of a list, with the same filters; ``None``: there is none."""
    asked = filters.model_dump(mode="json", exclude_defaults=True, exclude={"page_token", *without})
    return query({**asked, "page_token": token}) if token else None


def columns(given: Sequence[Column]) -> list[Column]:
    """The columns that the page has."""
    return [one for one in given if "page" in one.on]


def part(name: str) -> Markup:
    """The begin of a part of a page that moves alone: an element with this id. ``end`` stands behind it."""
    return Markup("<!--{} {}-->").format(_PART, name)


def parts_of(text: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """The main part of a page without the marks of its parts, and each part with its mark; the frame is named ``""``.

    A mark tells what is on the screen from anything else, and is the same for every gateway: it leaves out words for
    ages, which the page counts, and the keys of forms.
    """
    whole = text[text.index("<main ") : text.index("</main>") + len("</main>")]
    parts = {"": _PARTS.sub(r"<\1>", whole), **dict(_PARTS.findall(whole))}
    marked = {name: (_mark(f"{name} {found}"), found) for name, found in parts.items()}
    return _PARTS.sub(r"\2", whole), marked


def _mark(text: str) -> str:
    said = _AGES.sub("", text).replace(NO_KEY, "")
    return f"{zlib.crc32(said.encode('utf-8', 'surrogatepass')):08x}"


def _stream(request: Request, text: str) -> str:
    """The address of the stream of a page that was rendered as ``text``."""
    _, parts = parts_of(text)
    seen = "".join([mark for mark, _ in parts.values()][:_SEEN_MAX])
    said = {"path": request.scope["path"], "query": request.scope["query_string"].decode("latin-1"), "seen": seen}
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
    made.filters |= {"deletion": lambda one: deletion_words(one.model_dump(mode="json"))}
    made.filters |= {"moment": moment, "between": between, "number": number, "size": size, "pretty": pretty}
    made.filters |= {"aging": aging, "span": span, "rung": rung, "exact": exact, "cell": cell}
    made.globals |= {
        "asset": address,
        "query": query,
        "may": may,
        "part": part,
        "subjects": SUBJECTS,
        "columns": columns,
    }
    made.globals |= {"end": _END, "key": NO_KEY, "stream": _STREAM}
    return made


_TEMPLATES = _environment()


def html(template: str, **values: Any) -> str:
    """A template with these values, and with who reads it."""
    who = {"caller": caller_name(), "role": caller_role(), "navigation": NAVIGATION, "build": release()}
    return _TEMPLATES.get_template(template).render(who | {"layout": "base.html", "moves": False} | values)


def answer(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A whole page, compressed where that is understood."""
    alone = ALONE in request.scope
    moves = getattr(request.scope.get("route"), "operation_id", None) in MOVES
    layout = "main.html" if alone else "base.html"
    text = html(template, path=request.url.path, layout=layout, moves=moves, **values)
    if alone:
        return Response(text, status, media_type="text/html")
    if moves:
        text = text.replace(_STREAM, escape(_stream(request, text)))
    body = _PARTS.sub(r"\2", text).replace(NO_KEY, uuid.uuid4().hex).encode()
    # Back shows a form as it was sent, with its key, so that pressing again does nothing twice.
    headers = {"Vary": "Accept-Encoding", "Cache-Control": "private, no-cache"}
    if len(body) >= _ZIP_FROM and accepts_gzip(request):
        body = gzip.compress(body, 5, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, "text/html")

"""Rendering of web pages: asset files, and templates.

Any text can come from an attacker. All templates use autoescape, invisible characters are made
visible before that, and no template marks a text as safe.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import secrets
import uuid
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import BaseModel
from starlette.responses import Response

from crawler_lifecycle.domain.status_words import shown_word, state_word
from crawler_lifecycle.gateway.access.operations import caller_name, caller_role, may
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.subjects import (
    SUBJECTS,
    Column,
    Subject,
    deletion_words,
    limit_words,
    robots_words,
)
from crawler_lifecycle.web.problems import Problem

from .formats import (
    aging,
    between,
    cell,
    cell_text,
    exact,
    moment,
    number,
    pill,
    pretty,
    run_pill,
    size,
    span,
    step,
    visible,
)
from .notes import COOKIE, note_of

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
#: A local time as browsers write it.
LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?")
#: The operations of the pages that update automatically.
MOVES = {
    "showFleet",
    "showParts",
    "showRuns",
    "showRun",
    "showLog",
    "showTasks",
    "showTimeline",
    "showRequest",
    "showPools",
    "showSites",
    "showSite",
    "showSiteBlocks",
    "showSiteRuns",
    "showSiteLimits",
    "showManagers",
    "showManager",
    "showManagerJobs",
    "showManagerRuns",
    "showGraphs",
    "showGraph",
    "showGraphSteps",
    "showGraphRuns",
    "showSchedules",
    "showSchedule",
    "showDueTimes",
    "showScheduleDefinition",
    "showWebhooks",
    "showWebhook",
    "showDeliveries",
    "showWebhookDefinition",
    "showCorrections",
    "showAudit",
    "showCrawler",
    "showCrawlerRuns",
    "showCrawlerSchedules",
    "showCrawlerTab",
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
#: The mark around parts that are updated separately. It is random and never sent, so that no
#: content can contain it.
_PART = secrets.token_hex(8)
_END = Markup("<!--{}-->").format(_PART)
_PARTS = re.compile(f"<!--{_PART} ([a-z0-9-]+)-->(.*?)<!--{_PART}-->", re.DOTALL)
#: The ages in words, which differ between two renderings of the same content.
_AGES = re.compile(r'(?<=">)[^<]*(?=</time>)')
#: The maximum number of marks of parts in the address of a stream.
SEEN_MAX = 250


def query(values: Mapping[str, Any]) -> str:
    """Return the query string of a URL, with all values that are not empty."""
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
    return [column for column in given if "page" in column.on]


def column_class(column: Column) -> str:
    """Return the style classes of a column's cells."""
    found = ["n"] if column.right else []
    found += ["fills"] if column.fills else []
    return " ".join([*found, f"leaves-{column.leaves}"] if column.leaves else found)


def row_id(subject: Subject | None, row: Mapping[str, Any]) -> str:
    """Return the id of a row of a list: the noun and the number of its object, if it has one."""
    number = row.get(f"{subject.noun}_id") if subject else None
    return f"{subject.noun}-{number}" if subject and isinstance(number, int) else ""


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
        "shown_word": lambda row: shown_word(vars(row)),
        "run_pill": run_pill,
        "pill": pill,
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
        "cell_text": cell_text,
        "column_class": column_class,
        "row_id": row_id,
    }
    made.tests["local_time"] = LOCAL_TIME.fullmatch
    made.globals |= {
        "asset": address,
        "query": query,
        "may": may,
        "part": part,
        "subjects": SUBJECTS,
        "limit_words": limit_words,
        "robots_words": robots_words,
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
        who | {"layout": "base.html", "moves": False, "rail": _NO_COUNTS, "done": None} | values
    )


def answer(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a whole page, compressed if the client accepts that, or only its main part for a
    stream.
    """
    alone = ALONE in request.scope
    note = note_of(request)
    operation = getattr(request.scope.get("route"), "operation_id", None) or ""
    # The list on which an action was carried out is shown again.
    moves = (operation.replace("press", "show", 1) if note else operation) in MOVES
    layout = "main.html" if alone else "base.html"
    rail = getattr(request.state, "rail", _NO_COUNTS)
    own: dict[str, Any] = {"path": request.url.path, "here": here_of(request)}
    own |= {"layout": layout, "moves": moves, "rail": rail, "done": note}
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
    response = Response(body, status, headers, "text/html")
    if note and COOKIE in request.cookies:
        response.delete_cookie(COOKIE)
    return response


def here_of(request: Request) -> str:
    """Return the address of the request, with its query."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")

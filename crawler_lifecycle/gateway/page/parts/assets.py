"""Files that pages need: styles and scripts, ours and vendored ones.

They are a fixed list of what lies in ``assets/``, read once. Each has a hash in its name, so that browsers keep it for
ever and never mix two builds.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response

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
    """Where a file is found. Raises ``KeyError`` for one that is not there."""
    return PREFIX + assets()[name].name


def accepts_gzip(request: Request) -> bool:
    """Whether a compressed answer will be understood."""
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

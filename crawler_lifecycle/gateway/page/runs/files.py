"""Files of a run: a list, a look at texts and pictures, and items as a table. Each value is shown as text."""

from __future__ import annotations

import base64
import re
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlencode

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query, Request
from starlette.responses import Response

from crawler_lifecycle.domain.item_table import READ_MAX, is_items
from crawler_lifecycle.gateway.api.paging import ItemsChoice
from crawler_lifecycle.gateway.api.routes.files import TABLES, THREADS, items_of, missing, reading
from crawler_lifecycle.gateway.api.routes.runs import RunId, RunViews, found
from crawler_lifecycle.gateway.page.parts.rendering import answer
from crawler_lifecycle.gateway.runs.files import FileList, RunFiles
from crawler_lifecycle.store.runs.reads import RunReader

from .log import plain

#: Bytes of a text that are shown, and of a picture that is.
TEXT_MAX, PICTURE_MAX = 256 * 1024, READ_MAX
#: Pictures by how they begin: a name alone is a crawler's word. Those of vectors may hold scripts, and are none here.
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def add_files(app: FastAPI, files: RunFiles, views: RunViews, runs: RunReader) -> None:
    """Add the list of files, one file, and its items."""
    threads, tables = CapacityLimiter(THREADS), CapacityLimiter(TABLES)

    @app.get("/runs/{run_id}/files", operation_id="showFiles", include_in_schema=False)
    async def show_files(run_id: RunId, request: Request) -> Response:
        """What the tasks of a run leave: as it lies there now, or in its archive."""

        def listed() -> FileList:
            row = found(runs, run_id)
            with reading(run_id):
                return files.list(row)

        here = await to_thread.run_sync(listed, limiter=threads)
        rows = [(one, urlencode({"name": one.name}), is_items(one.name)) for one in here.files]
        return answer(request, "files.html", run_id=run_id, listed=here, rows=rows, now=views.clock())

    @app.get("/runs/{run_id}/file", operation_id="showFile", include_in_schema=False)
    async def show_file(run_id: RunId, choice: Annotated[ItemsChoice, Query()], request: Request) -> Response:
        """The beginning of one file, as text or as a picture."""

        def begin() -> tuple[int, bytes]:
            row = found(runs, run_id)
            with reading(run_id):
                opened = files.open(row, choice.name)
                if opened is None:
                    raise missing(run_id, f"name: {choice.name!r}")
                return opened.size, opened.beginning(PICTURE_MAX)

        size, data = await to_thread.run_sync(begin, limiter=threads)
        kind = next((kind for mark, kind in _PICTURES.items() if data.startswith(mark)), None)
        picture = f"data:{kind};base64,{base64.b64encode(data).decode()}" if kind and size <= PICTURE_MAX else None
        text = None if kind or _BINARY.search(data[:TEXT_MAX]) else plain(data[:TEXT_MAX])
        values: dict[str, Any] = {"run_id": run_id, "name": choice.name, "size": size, "picture": picture, "text": text}
        values |= {"short": PurePosixPath(choice.name).name, "cut": size > TEXT_MAX, "items": is_items(choice.name)}
        return answer(request, "file.html", asked=urlencode({"name": choice.name}), now=views.clock(), **values)

    @app.get("/runs/{run_id}/items", operation_id="showItems", include_in_schema=False)
    async def show_items(run_id: RunId, choice: Annotated[ItemsChoice, Query()], request: Request) -> Response:
        """The first items of a file as a table, columns by how often they are filled."""

        table = await to_thread.run_sync(items_of, files, runs, run_id, choice.name, limiter=tables)
        asked = urlencode({"name": choice.name})
        values: dict[str, Any] = {"run_id": run_id, "name": choice.name, "table": table, "asked": asked}
        return answer(request, "items.html", now=views.clock(), **values)

"""``python -m crawler_lifecycle.gateway.openapi_file docs``: writes ``openapi.json`` and ``problems.md`` there."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from crawler_lifecycle.store.store import Store
from crawler_lifecycle.web.problem_codes import render


def text() -> str:
    """The document as it is committed: sorted, so that two versions can be compared line by line."""
    from crawler_lifecycle.gateway.access.operations import Entrance

    from .app import create_app
    from .parts import Gateway

    # No request is served, so nothing behind the routes is needed.
    nothing: Any = None
    store = Store(**{port.name: nothing for port in fields(Store)})
    app = create_app(Gateway(store, nothing, nothing, entrance=Entrance(), sweep_s=None))
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(folder: str) -> int:
    """Write ``openapi.json`` and ``problems.md`` into the folder; the exit code."""
    target = Path(folder)
    if not target.is_dir():
        print(f"error: {folder}: no folder; give the one of the documents", file=sys.stderr)
        return 1
    for name, content in (("openapi.json", text()), ("problems.md", render())):
        (target / name).write_text(content)
        print(f"wrote {target / name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2] or ["docs"]))

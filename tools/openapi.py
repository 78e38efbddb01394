"""``python -m tools.openapi docs`` writes ``openapi.json`` and ``problems.md`` to ``docs``."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.web.problem_codes import CODES, Kind


def document() -> str:
    """Return the OpenAPI document as it is committed.

    The document is sorted, so that two versions can be compared line by line.
    """
    # The application serves no request, so the routes need no services.
    nothing: Any = None
    store = Store(**{port.name: nothing for port in fields(Store)})
    gateway = Gateway(
        store, nothing, nothing, entrance=Entrance(), code=nothing, outbox_retry_s=None
    )
    app = create_app(gateway)
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def problems() -> str:
    """Return the content of docs/problems.md."""
    parts, said = [_HEAD], dict[tuple[int, str], list[str]]()
    for code, kind in sorted(CODES.items()):
        first, *others = kind.statuses
        also = "".join(f" (or {status})" for status in others)
        program = "" if kind.retry == _BY_STATUS else f" **A program:** {kind.retry}"
        said.setdefault((first, f"{also}: {kind.meaning} {kind.fix}{program}\n"), []).append(
            f"**`{code}`**"
        )
    for status, texts in groupby(
        sorted(said, key=lambda text: (text[0], said[text])), key=itemgetter(0)
    ):
        parts += [f"## {status}\n", *(", ".join(said[text]) + text[1] for text in texts)]
    return "\n".join(parts)


#: The default behaviour of programs, which the head of the page describes.
_BY_STATUS = Kind([], "", "").retry

_HEAD = """# Problem documents

<!-- `python3 -m tools openapi` writes this page from crawler_lifecycle/web/problem_codes.toml. -->

Every response with status 400 or above is a problem document (RFC 9457, `application/problem+json`).

`type` consists of `urn:problem-type:crawler-lifecycle:` and the `code`, which is stable. `title`
and `detail` are for people, and their words may change. `status` is the status of the response,
`run_id` the number of an existing run, and `errors` a list of `field`, `message` and `value`. The `X-Request-Id` header equals `http_request` in the service's log.

[These rules](gateway.md#errors-and-repeating) say when a program repeats a request; a code's entry
names its exceptions. With a 503, nothing was accepted.
"""


def main(folder: str) -> int:
    """Write both documents into the folder, and return the exit code."""
    target = Path(folder)
    if not target.is_dir():
        print(f"error: {folder} is not a folder; give the folder of the documents", file=sys.stderr)
        return 1
    for name, content in (("openapi.json", document()), ("problems.md", problems())):
        (target / name).write_text(content)
        print(f"wrote {target / name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2] or ["docs"]))

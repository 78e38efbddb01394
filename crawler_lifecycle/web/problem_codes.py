"""Every stable code of a problem document, out of ``problem_codes.toml``; docs/problems.md is made from it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

#: What ``type`` begins with in a problem document; the code follows.
TYPE_PREFIX = "urn:problem-type:crawler-lifecycle:"


@dataclass(frozen=True, slots=True)
class Kind:
    """One code. ``retry`` is what a program should do without asking anybody."""

    statuses: list[int]
    meaning: str
    cure: str
    retry: str = "Do not repeat it unchanged."
    title: str | None = None
    """The title, where it differs from the code in words."""


CODES = {
    code: Kind(**said)
    for code, said in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def title(code: str) -> str:
    """The title of a code."""
    kind = CODES.get(code)
    return (kind and kind.title) or code.replace("_", " ").capitalize()


def render() -> str:
    """docs/problems.md."""
    parts = [_HEAD]
    for code in sorted(CODES):
        kind = CODES[code]
        statuses = " or ".join(str(status) for status in kind.statuses)
        parts.append(
            f"## {code}\n\nStatus {statuses} · `{TYPE_PREFIX}{code}`\n\n{kind.meaning}\n\n"
            f"**What to do.** {kind.cure}\n\n**A program:** {kind.retry}\n"
        )
    return "\n".join(parts)


_HEAD = """# Problem documents

<!-- Made from crawler_lifecycle/web/problem_codes.toml by `make openapi`; edit that one. -->

Every answer with a status from 400 on is a problem document (RFC 9457, `application/problem+json`):

```json
{
  "type": "urn:problem-type:crawler-lifecycle:run_not_found",
  "title": "Run not found",
  "status": 404,
  "detail": "run 4711 does not exist; GET /v1/runs lists what there is",
  "code": "run_not_found"
}
```

`code` is stable: programs may branch on it. `detail` is for people and says what to do; its words may change. `run_id`
is there when the problem is about a run that exists, `errors` (a list of `field`, `message` and `value`) when fields
are wrong. The header `X-Request-Id` names the request; the service's log has the same name as `http_request`.

Gateway and scheduler service share these codes, one section each.
"""

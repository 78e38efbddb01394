"""Sites in a soak: what people do to them, and what must hold there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tools.faults.oracle import Ask, Evidence
from tools.faults.site_oracle import BLOCKS, caps, closings
from tools.soak.journal import Process

SITES = ("moody.shop.example", "busy.example")
#: The limits that sites get; ``None`` removes them.
LIMITS: list[dict[str, Any] | None] = [
    {"tasks": 0},
    {"tasks": 1, "connections": 1},
    {"tasks": 2, "requests_per_s": 4},
    {"tasks": 2},
    None,
]
#: Everybody may crawl at the end, even if endless crawls hold slots.
LAST = (("limits", {"tasks": 100}), ("open", {}))


def random_change(dice: random.Random) -> dict[str, Any]:
    """Return what a person does to a site."""
    what = dice.choice(("limits", "limits", "close", "open"))
    body = {"limits": dice.choice(LIMITS), "close": {"for_s": dice.randint(2, 10)}, "open": {}}
    return {"site": dice.choice(SITES), "what": what, "body": body[what]}


def call_of(site: str, what: str, body: Any) -> tuple[str, str]:
    """Return method and path of a change."""
    if what == "limits":
        return ("DELETE" if body is None else "PUT"), f"/v1/sites/{site}"
    return "POST", f"/v1/sites/{site}/{what}"


def check_sites(query: Any, asks: Sequence[Ask], processes: Sequence[Process]) -> Iterator[str]:
    """Yield what is wrong at the sites. ``query`` returns the rows of a statement."""
    evidence = Evidence(processes=list(processes), asks=list(asks), blocks=query(BLOCKS))
    yield from caps(evidence, SITES)
    yield from closings(evidence)
    over = "SELECT t.run_id, t.site FROM site_ticket t JOIN run_history r ON r.run_id = t.run_id "
    for run_id, site in query(f"{over} WHERE r.status IN ('COMPLETED', 'FAILED')"):
        yield f"run {run_id} has ended and waits in the line of site {site}"

"""Crawls of two sites, and what people do to these sites meanwhile.

``capped.example`` has the same limits all the time. Those of ``moody.shop.example`` are changed, set to
0 and removed. People close and open both, and crawls close them by refused requests. At the end,
both are open.
"""

from __future__ import annotations

import random
import time
from typing import Any

from tools.faults.load import Load
from tools.faults.site_oracle import BOTH, CAPPED, KEYS, LIMITS, MOODY, SITES

#: Seconds between two requests.
PACE_S = 2.5
SECONDS = (0.5, 4.0)
CLOSED_S = (2, 10)
#: The limits of ``MOODY``; ``None`` removes them.
CHANGES: list[dict[str, Any] | None] = [
    {"tasks": 0},
    {"tasks": 1, "connections": 1},
    {"tasks": 2, "requests_per_s": 4},
    {"tasks": 3},
    None,
]
#: So that everything ends soon after the faults.
LAST = {"tasks": 6}


class SiteLoad:
    """Sends requests about sites at random moments, by seed."""

    def __init__(self, load: Load, seed: int) -> None:
        self.load = load
        self.begin(seed)
        self._count = 0
        self._next = 0.0

    def begin(self, seed: int) -> None:
        """Continue with this seed."""
        self.dice = random.Random(f"sites {seed}")

    def turn(self) -> None:
        """Send a request when it is due."""
        if time.time() < self._next:
            return
        self._next = time.time() + self.dice.expovariate(1 / PACE_S)
        if not self._count:
            self._set(CAPPED, LIMITS)
        kinds = (self._start, self._change, self._close, self._open)
        self.dice.choices(kinds, (10, 3, 2, 2))[0]()

    def finish(self) -> None:
        """Let everybody crawl. Must be called after the last answer to ``turn``."""
        self._set(MOODY, LAST)
        for site in SITES:
            self._ask("open", site, "POST", f"/v1/sites/{site}/open", {})

    def _start(self) -> None:
        site = self.dice.choice(SITES)
        tasks = [{"args": self._args(site)} for _ in range(self.dice.choice((1, 1, 2)))]
        body: dict[str, Any] = {"crawler": "visitor", "tasks": tasks, "poll_minutes": [0.1]}
        if self.dice.random() < 0.2:
            body["sites"] = list(SITES)
            site = BOTH
        self._count += 1
        key = f"{KEYS}{self._count}"
        self.load.ask("start", key, "/v1/runs", body, dice=self.dice, site=site)

    def _args(self, site: str) -> dict[str, str]:
        args = {"site": site, "seconds": str(round(self.dice.uniform(*SECONDS), 1))}
        return args | ({"refused": "2"} if self.dice.random() < 0.1 else {})

    def _change(self) -> None:
        self._set(MOODY, self.dice.choice(CHANGES))

    def _set(self, site: str, limits: dict[str, Any] | None) -> None:
        method = "DELETE" if limits is None else "PUT"
        self._ask("limits", site, method, f"/v1/sites/{site}", limits)

    def _close(self) -> None:
        site = self.dice.choice(SITES)
        body = {"for_s": self.dice.randint(*CLOSED_S)}
        self._ask("close", site, "POST", f"/v1/sites/{site}/close", body)

    def _open(self) -> None:
        site = self.dice.choice(SITES)
        self._ask("open", site, "POST", f"/v1/sites/{site}/open", {})

    def _ask(self, kind: str, site: str, method: str, path: str, body: Any) -> None:
        self._count += 1
        key = f"site-{self._count}"
        if kind in ("close", "open"):
            body = {**body, "requested_by": key}
        self.load.ask(kind, key, path, body, method=method, dice=self.dice, site=site)

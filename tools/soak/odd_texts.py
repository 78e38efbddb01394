"""Clients that send texts with unusual characters, long and short, wherever a request contains a
text.

Examples are half of a surrogate pair, characters that change the direction of text, emoji
sequences, control characters, and an id of 5,000 characters. Each text must be refused with a 4xx,
or the accepted request must be executed to its end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tools.soak.api_client import ApiClient, Document, Told

PLAIN = ("a", "Z", "9", "-", "_", ".", "/", ":", " ")
WIDE = (
    "é",
    "e\u0301",
    "o\u0308\u0323",
    "\u0301",
    "日本",
    "العربية",
    "עברית",
    "ß",
    "İ",
    "𝔘",
    "😀",
    "\U0010ffff",
    "\ufeff",
)
JOINED = (
    "👩\u200d👩\u200d👧\u200d👦",
    "🇩🇪",
    "\u202e",
    "\u2067",
    "\u200d",
    "\u2028",
    "\u00a0",
    "\u3000",
)
RAW = ("\0", "\a", "\x1b[2J", "\n", "\t", "\r\n", "\x7f", "\x85", "\ud800", "\udfff", "\ufffe")
MEANT = (
    "'",
    '"',
    "\\",
    "%00",
    "%s",
    "${x}",
    "{run_id}",
    "<b>",
    "NAME=",
    "FLOW_ID=",
    "../",
    "=",
    ",",
)
#: Lengths around the existing bounds: of names, of ids, and of what Temporal accepts in characters
#: and in bytes.
LENGTHS = (
    1,
    2,
    20,
    80,
    99,
    100,
    101,
    120,
    128,
    199,
    200,
    201,
    255,
    256,
    341,
    500,
    1000,
    2000,
    5000,
)
#: The fields of each kind of request that contain a text.
FIELDS = {
    "run": ("flow_id", "parent", "tag", "requested_by", "request_id", "note"),
    "manager": ("name", "flow_id", "parent", "tag", "requested_by", "request_id", "note"),
    "graph": ("id", "name", "step", "parent", "tag", "requested_by", "request_id", "note"),
}
#: The mean number of seconds between two requests.
PACE_S = 5.0
QUICK: Document = {"poll_minutes": [0.02, 0.03], "limits": {"start_check_s": 0.3}}


def odd_text(dice: random.Random) -> str:
    """Return a text of some unusual pieces, of any length around the bounds."""
    kinds = dice.choice([PLAIN, WIDE, WIDE, JOINED, RAW, MEANT, WIDE + JOINED, PLAIN + RAW])
    pieces = [dice.choice(kinds) for _ in range(dice.randint(1, 4))]
    length = dice.choice(LENGTHS)
    text = ("".join(pieces) * length)[:length]
    # Two surrogate halves next to each other are one character for the reader.
    return str(json.loads(json.dumps(text)))


@dataclass(frozen=True)
class Odd:
    """One request of a client."""

    number: int
    kind: str
    texts: dict[str, str]
    """What is odd of it, by field; nothing: an ordinary request."""
    reason: str | None
    """Of a stop that follows."""

    def __str__(self) -> str:
        of = ", ".join(f"{field} {text[:12]!r} x {len(text)}" for field, text in self.texts.items())
        return f"odd {self.number}: a {self.kind} with {of or 'nothing odd'}"

    @property
    def args(self) -> dict[str, str]:
        return {"seconds": "0.3", "note": self.texts.get("note", "plain")}

    def body(self) -> Document:
        """Return the part of the request that begins something."""
        names = ("flow_id", "parent", "requested_by", "request_id", "name", "id")
        found: Document = {name: self.texts[name] for name in names if name in self.texts}
        found |= {"tags": [self.texts["tag"]]} if "tag" in self.texts else {}
        if self.kind == "run":
            return {"crawler": "aside", "args": self.args, **QUICK, **found}
        if self.kind == "manager":
            return {"crawler": "aside", "name": "odd", "flow_id": f"odd-{self.number}", **found}
        job = {"crawler": "aside", "args": self.args, **QUICK}
        step = {"path": self.texts.get("step", "only"), "kind": "crawl", "job": job}
        return {"id": f"odd-{self.number}", "steps": [step], **found}


def odd_requests(seed: int) -> Iterator[Odd]:
    """Yield requests without end. The same seed yields the same requests."""
    dice, number = random.Random(f"odd-{seed}"), 0
    while True:
        number, kind = number + 1, dice.choice(["run", "run", "manager", "graph"])
        fields = dice.sample(FIELDS[kind], dice.choice([0, 1, 1, 1, 2, 3]))
        texts = {field: odd_text(dice) for field in fields}
        yield Odd(number, kind, texts, odd_text(dice) if dice.random() < 0.25 else None)


@dataclass
class Sent:
    """A request, and the answers to each part of it."""

    odd: Odd
    start: Told
    jobs: Told | None = None
    """Of a manager: its one job, and that no more come."""
    stop: Told | None = None

    @property
    def number(self) -> Any:
        """Return the name that the service uses for it."""
        return self.start.answer.get("id" if self.odd.kind == "graph" else f"{self.odd.kind}_id")


class Strangers:
    """Clients that send one request after the other."""

    def __init__(self, api: ApiClient, seed: int) -> None:
        self._api, self._dice, self._requests = (
            api,
            random.Random(f"pace-{seed}"),
            odd_requests(seed),
        )
        self.sent: list[Sent] = []

    def turn(self) -> float:
        odd = next(self._requests)
        key = None if "request_id" in odd.texts else f"odd-{odd.number}"
        sent = Sent(odd, self._api.until_told("POST", f"/v1/{odd.kind}s", odd.body(), key))
        self.sent.append(sent)
        if sent.start.ok:
            self._go_on(
                sent, f"/v1/{odd.kind}s/{quote(str(sent.number), safe='', errors='surrogatepass')}"
            )
        return self._dice.expovariate(1 / PACE_S)

    def _go_on(self, sent: Sent, path: str) -> None:
        odd = sent.odd
        if odd.kind == "manager":
            page = {"jobs": [{"spider_args": odd.args}], "seal": True}
            sent.jobs = self._api.until_told("POST", f"{path}/jobs", page, f"odd-{odd.number}")
            if sent.jobs.refused:
                sealed = {"jobs": [{"spider_args": {"seconds": "0.3"}}], "seal": True}
                sent.jobs = self._api.until_told(
                    "POST", f"{path}/jobs", sealed, f"odd-{odd.number}-plain"
                )
        if odd.reason is not None:
            sent.stop = self._api.until_told("POST", f"{path}/stop", {"reason": odd.reason})

    def finish(self) -> None:
        """Stop everything that would continue by itself."""

"""Forms that do something: their keys, and how it is told what became of a press."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.responses import Response

from .rendering import answer

#: Presses that are remembered.
KEPT_MAX = 2000

Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


class Pressed(BaseModel):
    """What every form sends."""

    model_config = ConfigDict(extra="forbid")

    key: Key


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one thing that something was pressed about."""

    name: str
    href: str
    done: bool
    text: str


def went_on(name: str, href: str, status: str, attempt: int) -> Told:
    """That nothing was done about it: it is not what the form showed any more."""
    words = f"it is {status} in attempt {attempt} by now; look at it again first."
    return Told(name, href, False, f"Not carried out: {words}")


class Once:
    """What was pressed, by the keys of the forms: pressed again, the same is told and nothing is done.

    It is of one process, and for its words alone: another gateway, and one that began anew, do not know the key. That
    nothing is done twice is the database's work (docs/page.md, "Several gateways").
    """

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Task[Any]] = {}

    async def __call__(self, key: str, act: Callable[[], Coroutine[Any, Any, Told]]) -> Told:
        """What became of it. A failure is not kept: after it the form may be sent again."""
        asked = self._asked.get(key)
        if asked is None:
            while len(self._asked) >= KEPT_MAX:
                del self._asked[next(iter(self._asked))]
            asked = self._asked[key] = asyncio.create_task(act())
        try:
            told: Told = await asyncio.shield(asked)
        except Exception:
            self._asked.pop(key, None)
            raise
        return told


def tell(request: Request, word: str, told: list[Told], now: datetime) -> Response:
    """The page that says what became of a press."""
    return answer(request, "pressed.html", word=word, told=told, now=now)

"""Actions on what was chosen on a list: one thing, a selection, or all that fit.

The commands of the API carry out the action for each thing, and each has its own result. A form contains a key, and the
attempt of each thing that was shown. A form that is sent again, for example after Back, does nothing twice. A thing
that has another attempt now is reported and not changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from crawler_lifecycle.domain.errors import LifecycleError, RowUnreadable
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.page.parts.forms import ActionForm, Outcome, check_shown, outcomes_page
from crawler_lifecycle.gateway.page.parts.rendering import answer
from crawler_lifecycle.web.problems import Problem, refused

logger = logging.getLogger(__name__)

#: The most things in one form.
SELECTED_MAX = 500
#: The most things of one form that are worked on at the same moment.
AT_ONCE = 8
#: What names a chosen thing: its key, which may be a number, a dot, and the attempt that was shown.
_ATTEMPT = r"\.[1-9][0-9]{0,8}$"
NUMBERED, CHOSEN = rf"^[1-9][0-9]{{0,17}}{_ATTEMPT}", rf"^.{{1,1000}}{_ATTEMPT}"

Thing = tuple[str, int]
"""The key of a thing and the attempt that was shown."""
Find = Callable[[str], Awaitable[Any]]
"""Returns the row of a thing by its key."""
Act = Callable[[str, int], Awaitable[tuple[bool, str]]]
"""Carries out the action for a thing. Returns whether it did something, and a sentence."""


class ChosenForm(ActionForm):
    """The form of chosen things. The list of them has the name of their kind, such as ``run``."""

    typed: str | None = Field(default=None, max_length=40)

    def chosen(self) -> list[Thing]:
        """Return each thing once. Raises ``Problem`` 422 for none, or for too many."""
        noun, most = self.subject.noun, SELECTED_MAX
        found = {key: int(attempt) for key, _, attempt in (text.rpartition(".") for text in getattr(self, noun))}
        if not found:
            raise refused(noun, f"no {noun} was chosen; go back and choose the {noun}s first")
        if len(found) > most:
            raise refused(noun, f"{len(found)} {noun}s were chosen; choose at most {most} at once")
        return list(found.items())


async def press(request: Request, asked: ChosenForm, find: Find, act: Act, now: datetime) -> Response:
    """Carry out the action for each thing, and show the result of each."""
    chosen = asked.chosen()
    if asked.action.danger and (expected := await _unconfirmed(find, chosen, asked)) is not None:
        present_call().admitted = False  # a question: nothing is done yet
        return answer(request, "force.html", expected=expected, asked=asked, chosen=chosen, now=now)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(key: str, attempt: int) -> Outcome:
        async with limit:
            done, text = await _carried_out(asked, find, act, key, attempt)
            return Outcome(f"{asked.subject.noun} {key}", asked.subject.path(key), done, text)

    outcomes = await asyncio.gather(*(one(*thing) for thing in chosen))
    return outcomes_page(request, asked.action.title, list(outcomes), now)


async def _unconfirmed(find: Find, chosen: Sequence[Thing], asked: ChosenForm) -> str | None:
    """Return the text that a person must type before a force or a deletion.

    Return ``None`` if the text was typed, or, for a force, if all these things already have a stop or have ended.
    """
    numbered = len(chosen) == 1 and chosen[0][0].isdecimal()
    expected = chosen[0][0] if numbered else str(len(chosen))
    if asked.typed is not None and asked.typed.strip() == expected:
        return None
    if asked.do == "delete":
        return expected
    for key, _ in chosen:
        try:
            row = await find(key)
        except (LifecycleError, Problem):
            continue  # the result of the action will show it
        if row.stop is None and row.ended_at is None:
            return expected
    return None


async def _carried_out(asked: ChosenForm, find: Find, act: Act, key: str, attempt: int) -> tuple[bool, str]:
    try:
        with suppress(RowUnreadable):  # such a thing can still be stopped
            row = await find(key)
            check_shown(attempt, row.attempt, getattr(row, "status", None) or row.state)
        return await act(key, attempt)
    except Problem as problem:
        return False, problem.detail
    except LifecycleError as error:
        return False, str(error)
    except Exception:
        logger.exception("%s of %s %s failed", asked.do, asked.subject.noun, key)
        return False, "This is a bug in the service; its log has the details"

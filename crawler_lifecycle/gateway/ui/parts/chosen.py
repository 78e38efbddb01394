"""Actions on what was chosen on a list: one thing, a selection, or all that fit.

The commands of the API carry out the action for each thing, and each has its own result. A form
contains a key, and the attempt of each thing that was shown. A form that is sent again, for example
after Back, does nothing twice. A thing that has another attempt now is reported and not changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.responses import Response

from crawler_lifecycle.domain.errors import LifecycleError, RowUnreadable
from crawler_lifecycle.gateway.access.operations import may
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.forms import (
    ActionForm,
    Once,
    Outcome,
    carry_out,
    check_shown,
    form,
    outcomes_page,
    query_of,
    read,
)
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.web.problems import Problem, refused

logger = logging.getLogger(__name__)

#: The most things in one form.
SELECTED_MAX = 500
#: The most things of one form that are worked on at the same moment.
AT_ONCE = 8
#: What names a chosen thing: its key, which may be a number, a dot, and the attempt that was shown.
_ATTEMPT = r"\.[1-9][0-9]{0,8}$"
NUMBERED = rf"^[1-9][0-9]{{0,17}}{_ATTEMPT}"
CHOSEN = rf"^.{{1,1000}}{_ATTEMPT}"

Thing = tuple[str, int]
"""The key of a thing and the attempt that was shown."""
Find = Callable[[str], Awaitable[Any]]
"""Returns the row of a thing by its key."""
Act = Callable[[str, int], Awaitable[tuple[bool, str]]]
"""Carries out the action for a thing. Returns whether it did something, and a sentence."""
Do = Callable[[str, Any], Coroutine[Any, Any, str]]
"""Carries out the action of a form for the thing with this key. Returns a sentence about the
result.
"""


class ChosenForm(ActionForm):
    """The form of chosen things. The list of them has the name of their kind, such as ``run``."""

    typed: str | None = Field(default=None, max_length=40)

    def chosen(self) -> list[Thing]:
        """Return each thing once. Raises ``Problem`` 422 for none, or for too many."""
        noun = self.subject.noun
        most = SELECTED_MAX
        found = {
            key: int(attempt)
            for key, _, attempt in (text.rpartition(".") for text in getattr(self, noun))
        }
        if not found:
            raise refused(noun, f"no {noun} was chosen; go back and choose the {noun}s first")
        if len(found) > most:
            raise refused(noun, f"{len(found)} {noun}s were chosen; choose at most {most} at once")
        return list(found.items())


async def press(
    request: Request, asked: ChosenForm, find: Find, act: Act, now: datetime
) -> Response:
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

    Return ``None`` if the text was typed, or, for a force, if all these things already have a stop
    or have ended.
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


async def _carried_out(
    asked: ChosenForm, find: Find, act: Act, key: str, attempt: int
) -> tuple[bool, str]:
    try:
        with suppress(RowUnreadable):  # such a thing can still be stopped
            check_shown(attempt, await find(key))
        return await act(key, attempt)
    except (Problem, LifecycleError) as error:
        return False, str(error)
    except Exception:
        logger.exception("%s of %s %s failed", asked.do, asked.subject.noun, key)
        return False, "This is a bug in the service; its log has the details"


def add_list(
    app: FastAPI,
    chooser: Chooser,
    filters: type[Any],
    chosen: type[ChosenForm],
    views: Any,
    find: Find,
    do: Do,
    once: Once,
) -> None:
    """Add the list of managers or graphs, and the actions on what was chosen in it."""
    plural = chooser.subject.plural.capitalize()

    @app.get(chooser.path, operation_id=f"show{plural}")
    def show_list(request: Request) -> Response:
        """List what fits the filters of the address, newest first."""
        asked = query_of(request, filters)
        page = views.page(asked)
        acts = chosen.acts if may(f"press{plural}") else ()
        values = chooser.listed(asked, page, views.counted(asked, page), acts)
        return answer(request, "list.html", now=views.clock(), **values)

    @app.post(chooser.path, operation_id=f"press{plural}")
    async def press_list(request: Request) -> Response:
        """Carry out an action for each that was chosen."""
        asked = read(chosen, await form(request))

        async def act(key: str, _: int) -> tuple[bool, str]:
            # A pause that is sent again must not undo what somebody did since.
            return True, await once(f"{asked.request_key}.{key}", lambda: do(key, asked))

        return await press(request, asked, find, act, views.clock())


async def press_one(
    request: Request, kind: type[Any], key: object, find: Find, do: Do, once: Once, now: datetime
) -> Response:
    """Carry out the action of the form on the page of a manager or a graph."""
    asked = read(kind, await form(request))

    async def act() -> str:
        check_shown(asked.attempt, await find(str(key)))
        return await do(str(key), asked)

    return await carry_out(request, once, asked, key, act, now)

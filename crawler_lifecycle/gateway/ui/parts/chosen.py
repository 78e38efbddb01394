"""Actions on a selection in a list: one object, several objects, or all that match.

The commands of the API carry out the action for each object separately, and each object has its own
result. A form contains a key, and for each object the attempt that was shown. A form that is sent
again, for example after the Back button, does nothing twice. An object whose attempt is no longer
the one shown is reported and not changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.errors import LifecycleError, RowUnreadable
from crawler_lifecycle.gateway.access.operations import may
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.ui.parts import lists
from crawler_lifecycle.subjects import total_words
from crawler_lifecycle.web.problems import Problem, refused

from .choosing import Chooser
from .forms import (
    ActionForm,
    Once,
    carry_out,
    check_shown,
    form,
    read,
)
from .lists import SELECTED_MAX, RowPage, filters_of, list_page
from .notes import Outcome, go_back, note_outcomes
from .rendering import answer

logger = logging.getLogger(__name__)

#: The maximum number of objects of one form that are processed at the same time.
AT_ONCE = 8
#: The identifier of a selected object: its key, which may be a number, a dot, and the attempt that
#: was shown.
_ATTEMPT = r"\.[1-9][0-9]{0,8}$"
NUMBERED = rf"^[1-9][0-9]{{0,17}}{_ATTEMPT}"
CHOSEN = rf"^.{{1,1000}}{_ATTEMPT}"

Thing = tuple[str, int]
"""The key of an object and the attempt that was shown."""
Find = Callable[[str], Awaitable[Any]]
"""Returns the row of an object by its key."""
Act = Callable[[str, int], Awaitable[tuple[bool, str]]]
"""Carries out the action for an object. Returns whether it changed something, and a sentence."""
Show = Callable[[Request], Awaitable[Response]]
"""Shows the list that the address of the form selects."""
Do = Callable[[str, Any], Coroutine[Any, Any, str]]
"""Carries out the action of a form for the object with this key. Returns a sentence about the
result.
"""


class ChosenForm(ActionForm):
    """The form of a selection. The list of selected objects has the name of their kind, such as
    ``run``.
    """

    typed: str | None = Field(default=None, max_length=40)
    stay: bool = False
    """True if the form was on a list, which is shown again. Otherwise, it was on the page of the
    only selected object.
    """

    @classmethod
    def offered(cls, filters: Any) -> Sequence[str]:
        """Return the actions that a list with these filters offers."""
        return cls.acts

    def chosen(self) -> list[Thing]:
        """Return each selected object once. Raises ``Problem`` 422 if there are none or too
        many.
        """
        noun = self.subject.noun
        most = SELECTED_MAX
        found = {
            key: int(attempt)
            for key, _, attempt in (text.rpartition(".") for text in getattr(self, noun))
        }
        if not found:
            raise refused(noun, f"no {noun} was selected; go back and select the {noun}s first")
        if len(found) > most:
            raise refused(
                noun, f"{len(found)} {noun}s were selected; select at most {most} at once"
            )
        return list(found.items())


async def press(
    request: Request, asked: ChosenForm, find: Find, act: Act, show: Show, now: datetime
) -> Response:
    """Carry out the action for each object, and show the list or the object's page with a note
    about each result. Raises the error if the only object of a page does not exist.
    """
    chosen = asked.chosen()
    alone = len(chosen) == 1 and not asked.stay
    if alone:
        with suppress(RowUnreadable):
            await find(chosen[0][0])
    if asked.action.danger and (expected := await _unconfirmed(find, chosen, asked)) is not None:
        present_call().admitted = False  # the page only asks a question, and nothing is done yet
        values: dict[str, Any] = {"expected": expected, "asked": asked, "chosen": chosen}
        return answer(request, "force.html", now=now, **values)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(key: str, attempt: int) -> Outcome:
        async with limit:
            done, text = await _carried_out(asked, find, act, key, attempt)
            return Outcome(f"{asked.subject.noun} {key}", asked.subject.path(key), done, text)

    outcomes = await asyncio.gather(*(one(*thing) for thing in chosen))
    if alone:
        return go_back(request, asked.action.title, outcomes[0], asked.subject.path(chosen[0][0]))
    note_outcomes(request, asked.action.title, outcomes)
    return await show(request)


async def _unconfirmed(find: Find, chosen: Sequence[Thing], asked: ChosenForm) -> str | None:
    """Return the text that a person must type before a forced stop or a deletion.

    Return ``None`` if the text was typed. For a forced stop, also return it if all these objects
    have a stop or have ended.
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
            continue  # the result of the action will show the error
        if row.stop is None and row.ended_at is None:
            return expected
    return None


async def _carried_out(
    asked: ChosenForm, find: Find, act: Act, key: str, attempt: int
) -> tuple[bool, str]:
    try:
        with suppress(RowUnreadable):  # an object with an unreadable row can still be stopped
            check_shown(attempt, await find(key))
        return await act(key, attempt)
    except (Problem, LifecycleError) as error:
        return False, str(error)
    except Exception:
        logger.exception("%s of %s %s failed", asked.do, asked.subject.noun, key)
        return False, "This is a bug in the service; its log has the details"


def listed_by(views: Any, plural: str) -> lists.Find:
    """Return the function that finds managers or graphs, and counts them."""

    def found(asked: Any) -> RowPage:
        page = views.page(asked)
        rows = [row.model_dump() for row in getattr(page, plural)]

        def total() -> str:
            return total_words(*views.counted(asked, page))

        return RowPage(rows, page.next_page_token, page.note, total)

    return found


def add_list(
    app: FastAPI,
    chooser: Chooser,
    filters: type[Any],
    chosen: type[ChosenForm],
    found: lists.Find,
    clock: Clock,
    find: Find,
    do: Do,
    once: Once,
) -> None:
    """Add the list of a subject, and the actions on a selection in it."""
    plural = chooser.subject.plural.capitalize()

    @app.get(chooser.path, operation_id=f"show{plural}")
    async def show_list(request: Request) -> Response:
        """List the objects that match the filters of the address, newest first."""
        asked = filters_of(request, filters)
        acts = chosen.offered(asked) if may(f"press{plural}") else ()
        page = partial(list_page, now=clock(), acts=acts)
        return await run_in_threadpool(page, request, chooser, asked, found)

    @app.post(chooser.path, operation_id=f"press{plural}")
    async def press_list(request: Request) -> Response:
        """Carry out an action for each selected object."""
        asked = read(chosen, await form(request))

        async def act(key: str, _: int) -> tuple[bool, str]:
            # A pause that is sent again must not undo a later change by somebody else.
            return True, await once(f"{asked.request_key}.{key}", lambda: do(key, asked))

        return await press(request, asked, find, act, show_list, clock())


async def press_one(
    request: Request, kind: type[Any], key: object, find: Find, do: Do, once: Once
) -> Response:
    """Carry out the action of the form on the page of a manager or a graph."""
    asked = read(kind, await form(request))

    async def act() -> str:
        if asked.attempt is not None:
            check_shown(asked.attempt, await find(str(key)))
        return await do(str(key), asked)

    return await carry_out(request, once, asked, key, act)

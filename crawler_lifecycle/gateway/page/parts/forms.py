"""Forms: reading them as strictly as JSON, saying what became of a press, and fields for each thing of a body."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Protocol, TypeGuard, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, field_validator
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.errors import LifecycleError, NotInThisState
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.page.parts.rendering import answer
from crawler_lifecycle.subjects import Action, Subject
from crawler_lifecycle.web.problems import ERRORS_MAX, Problem, check_json, field_error, of_error, refused

#: Fields of one form: a selection of 500 and some more.
FIELDS_MAX = 2000
_KIND = "application/x-www-form-urlencoded"

T = TypeVar("T", bound=BaseModel)

Pairs = Sequence[tuple[str, str]]


async def form(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, in its order. Raises ``Problem`` 400, 415 or 422."""
    kind = request.headers.get("content-type", "nothing")
    if kind.partition(";")[0].strip().lower() != _KIND:
        raise Problem(415, "unsupported_type", f"Content-Type: {kind[:100]} is not taken; send {_KIND}")
    try:
        text = (await request.body()).decode("ascii")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, "bad_request", "body: no valid UTF-8; send the form as the page has it") from None
    except ValueError:
        raise Problem(422, "invalid_request", f"body: more than {FIELDS_MAX} fields; select fewer") from None


def read(kind: type[T], pairs: Pairs) -> T:
    """The fields as a ``kind``; empty ones are left out. Raises ``Problem`` 422 that names each wrong field.

    A field comes once, or as often as it likes where ``kind`` has a list.
    """
    lists = {name for name, field in kind.model_fields.items() if "list" in str(field.annotation)}
    values: dict[str, object] = {}
    for name, value in pairs:
        if value == "":
            continue
        if name in lists:
            entry = values.setdefault(name, [])
            assert isinstance(entry, list)
            entry.append(value)
        elif name in values:
            raise refused(name, "given twice; give it once")
        else:
            values[name] = value
    return validated(kind, values, list(kind.model_fields))


def validated(kind: type[T], values: Mapping[str, object], known: Sequence[str] = ()) -> T:
    """The values as a ``kind``, whose fields may be texts. Raises ``Problem`` 422 that names each wrong field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = [field_error(item, known=known) for item in error.errors(include_url=False)[:ERRORS_MAX]]
        detail = "; ".join(f"{one.field}: {one.message}" for one in found)
        raise Problem(422, "invalid_request", detail, errors=found) from None


#: Presses that are remembered.
KEPT_MAX = 2000

Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


class KeyedForm(BaseModel):
    """The key that every form sends."""

    model_config = ConfigDict(extra="forbid")

    key: Key


class ActionForm(KeyedForm):
    """The form of one subject: one of its table of actions."""

    subject: ClassVar[Subject]

    do: str

    @field_validator("do")
    @classmethod
    def _known(cls, do: str) -> str:
        known = [one.name for one in cls.subject.actions]
        if do not in known:
            raise ValueError(f"choose from {', '.join(known)}")
        return do

    @property
    def action(self) -> Action:
        return self.subject.action(self.do)

    @property
    def request_key(self) -> str:
        """The name of this press: the same one is carried out once."""
        return f"{self.key}.{self.do}"

    def sentence(self, fresh: bool, note: str | None, **values: object) -> str:
        """Say in a sentence what became of it; ``fresh``: something was changed. ``values`` stand in the sentence."""
        text = (self.action.done if fresh else self.action.before).format(**values)
        return f"{text} {note}" if note else text


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an action for one thing."""

    name: str
    href: str
    done: bool
    text: str


def check_shown(shown: int, attempt: int, status: str) -> None:
    """Raise ``NotInThisState`` where something is not in the ``attempt`` that the form has shown any more."""
    if shown != attempt:
        words = f"it is {status} in attempt {attempt} by now, and attempt {shown} was shown"
        raise NotInThisState(f"Not carried out: {words}. Look at it again first.")


class Once:
    """Actions, by the keys of their forms: a form that is sent again gets the same outcome, and nothing is done.

    It is of one process, and for its words alone: another gateway, and one that began anew, do not know the key. That
    nothing is done twice is the database's work (docs/page.md, "Several gateways").
    """

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Task[Any]] = {}

    async def __call__(self, key: str, act: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
        """The outcome of the press. A failure is not kept: after it the form may be sent again."""
        asked = self._asked.get(key)
        if asked is None:
            while len(self._asked) >= KEPT_MAX:
                del self._asked[next(iter(self._asked))]
            asked = self._asked[key] = asyncio.create_task(act())
        try:
            outcome: Outcome = await asyncio.shield(asked)
        except Exception:
            self._asked.pop(key, None)
            raise
        return outcome


def outcomes_page(request: Request, word: str, outcomes: list[Outcome], now: datetime) -> Response:
    """The page that says what became of a press."""
    return answer(request, "outcomes.html", word=word, outcomes=outcomes, now=now)


async def carry_out(
    request: Request, once: Once, asked: ActionForm, key: object, act: Callable[[], Awaitable[str]], now: datetime
) -> Response:
    """Carry out once an action on one of its subject, and say what became of it. ``act`` does it, and says
    in a sentence what it did; ``NotInThisState`` is such an outcome, too."""
    name, href = f"{asked.subject.noun} {key}", asked.subject.path(key)

    async def carried_out() -> Outcome:
        try:
            text = await act()
        except NotInThisState as error:
            return Outcome(name, href, False, str(error))
        return Outcome(name, f"/{asked.subject.plural}" if asked.do == "delete" else href, True, text)

    return outcomes_page(request, asked.action.title, [await once(asked.request_key, carried_out)], now)


#: Characters of a command line that is typed: to take one apart needs some microseconds for each.
_WORDS_MAX = 16 * 1024
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wrong:
    """The mistakes in a form that was sent."""

    detail: str
    fields: Mapping[str, str]
    """Sentences by the name of the field."""


def typed(pairs: Pairs, known: Iterable[str], *, several: Iterable[str] = ()) -> dict[str, str]:
    """The typed fields, each once, without those that are empty. A field of ``several`` has one value a line.

    Raises ``Problem`` 422 for what no page of ours sends.
    """
    known, several, found = set(known), set(several), dict[str, str]()
    for name, value in pairs:
        if name not in known:
            raise refused(name, "unknown field; load the form again")
        if name in several:
            value = f"{found.get(name, '')}\n{value}".strip("\n")
        elif name in found:
            raise refused(name, "given twice; give it once")
        if value.strip():
            found[name] = value.replace("\r\n", "\n")  # as it was before the browser sent it
    return found


def lines(text: str) -> list[str]:
    """The text of each line, without the spaces around it."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def parts(text: str) -> list[str]:
    """The texts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def assignments(field: str, text: str) -> dict[str, str]:
    """Lines of ``NAME=VALUE``; a value is taken as it stands. Raises ``Problem`` 422."""
    found: dict[str, str] = {}
    for n, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip() or name.strip() in found:
            raise refused(field, f"line {n}: write NAME=VALUE, each name once")
        found[name.strip()] = value
    return found


def words(field: str, text: str) -> list[str]:
    """Words as a shell would split them. Raises ``Problem`` 422."""
    if len(text) > _WORDS_MAX:
        raise refused(field, f"{len(text)} characters are too many; give at most {_WORDS_MAX}, or argv as JSON")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise refused(field, f"{error}; quote as on a command line") from None


def whole(text: str) -> int | str:
    """The number that a text says; a text that says none is for the API to refuse."""
    return int(text) if _WHOLE.fullmatch(text.strip()) else text


def one_object(field: str, text: str) -> dict[str, object]:
    """A JSON object, checked as strictly as a body of the API. Raises ``Problem`` 422."""
    try:
        check_json(text.encode())
    except Problem as problem:
        raise refused(field, problem.detail.removeprefix("body: ")) from None
    found = json.loads(text)
    if not isinstance(found, dict):
        raise refused(field, 'give one object, such as {"settings": {"DOWNLOAD_DELAY": "1"}}')
    return found


def can_be_typed(texts: Iterable[str]) -> bool:
    """Return whether these come back from a line of a form as they are."""
    return not any(set("\r\n\0") & set(text) for text in texts)


def as_assignments(values: object) -> str | None:
    """The lines of ``assignments``; ``None`` for what cannot be written so."""
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        return None
    text = "\n".join(f"{name}={value}" for name, value in values.items())
    plain = can_be_typed([*values, *values.values()])
    return text if plain and assignments("", text) == values else None


def as_words(values: object) -> str | None:
    """The text of ``words``; ``None`` for what cannot be written so."""
    text = shlex.join(values) if _are_texts(values) else ""
    return text if text and len(text) <= _WORDS_MAX else None


def as_parts(values: object) -> str | None:
    """The text of ``parts``; ``None`` for a value without such a text."""
    text = ", ".join(values) if _are_texts(values) else ""
    return text if parts(text) == values else None


def _are_texts(values: object) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(one, str) for one in values) and can_be_typed(values)


def placed(problem: Problem, names: Mapping[str, str], kinds: Sequence[str] = (), rest: str | None = None) -> Wrong:
    """A refusal of the API beside the fields of a form.

    ``names``: a field of the API -> that of the form. ``kinds``: what its path may begin with, as ``run`` of
    ``run.crawler``, whose fields are ``run.NAME`` in ``names`` or else stand in the field ``rest``.
    """
    found: dict[str, str] = {}
    for error in problem.errors:
        kind, dot, inner = error.field.partition(".")
        within = kind in kinds and bool(dot)
        path = inner if within else error.field
        first = re.split(r"[.\[]", path)[0]
        own = (names.get(f"{kind}.{first}") if within else names.get(first)) or rest
        place = path if own == rest and path not in (own, "body") else path.removeprefix(first).lstrip(".")
        if own:
            found.setdefault(own, f"{place}: {error.message}" if place else error.message)
    return Wrong(problem.detail, found)


class Put(Protocol):
    """Commands on what is put under a name: schedules and webhooks."""

    async def seen(self, name: str) -> Any: ...
    async def put(self, name: str, body: Any) -> object: ...
    async def pause(self, name: str, body: Any) -> object: ...
    async def resume(self, name: str) -> object: ...


async def keep(commands: Put, given: Mapping[str, str], body: Any, pause: Any) -> None:
    """Make what a form names, or change it, and pause it or let it go on: afterwards it is as the form says."""
    name = given.get("name", "").strip()
    row = await commands.seen(name)
    if row is None or row.definition != body.spec().document():
        check_seen(given, None if row is None else row.revision)
        await commands.put(name, signed(body))
    if "paused" in given and "was_paused" not in given:
        await commands.pause(name, signed(pause))
    elif "was_paused" in given and "paused" not in given:
        await commands.resume(name)


def reason(given: Mapping[str, str]) -> bytes:
    """The body of a pause, as JSON."""
    return json.dumps({"reason": given.get("reason")}).encode()


async def sent(carry_out: Callable[[], Awaitable[str]], shown: Callable[[Problem], Awaitable[Response]]) -> Response:
    """The way to the page that ``carry_out`` names; or the form once more, with what is wrong in it."""
    try:
        return RedirectResponse(await carry_out(), 303)
    except Problem as problem:
        return await shown(problem)
    except LifecycleError as error:
        return await shown(of_error(error))


def check_seen(given: Mapping[str, str], revision: int | None) -> None:
    """Raise ``Problem`` where a form would be written over what it did not show, of this revision by now."""
    shown = given.get("revision")
    if shown == (None if revision is None else str(revision)):
        return
    if shown is None:
        raise refused("name", "there is one of this name; change that one, or give another name")
    what = "it was deleted" if revision is None else "somebody changed it"
    raise Problem(409, "not_in_this_state", f"Nothing was kept: {what} since this form was shown. Open it anew.")

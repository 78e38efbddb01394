"""Forms of web pages: strict reading, conversion between their fields and bodies of the API, and
actions on one subject.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import math
import re
import shlex
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.errors import LifecycleError, NotInThisState
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.status_words import state_word
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.named import NamedCommands
from crawler_lifecycle.subjects import Action, Subject
from crawler_lifecycle.web.problems import (
    FieldError,
    Problem,
    check_json,
    invalid,
    of_error,
    refused,
)
from crawler_lifecycle.web.turns import in_turn

from .notes import Outcome, go_back
from .rendering import LOCAL_TIME

#: The maximum number of fields in one form: a selection of 500 runs, and some more.
FIELDS_MAX = 2000
#: The maximum number of lines in all its fields: 10,000 tasks, and some more.
LINES_MAX = 11_000
_KIND = "application/x-www-form-urlencoded"

T = TypeVar("T", bound=BaseModel)
R = TypeVar("R")
J = TypeVar("J")

Pairs = Sequence[tuple[str, str]]


async def form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form in their order. Raises ``Problem`` 400, 415 or 422."""
    kind = request.headers.get("content-type", "nothing")
    if kind.partition(";")[0].strip().lower() != _KIND:
        raise Problem(
            415, "unsupported_type", f"Content-Type: {kind[:100]} is not accepted; send {_KIND}"
        )
    try:
        text = (await request.body()).decode("ascii")
        parse = functools.partial(
            parse_qsl, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict"
        )
        pairs = await in_turn(len(text), parse, text)
    except UnicodeDecodeError:
        raise Problem(
            400, "bad_request", "body: not valid UTF-8; send the form from its page"
        ) from None
    except ValueError:
        raise Problem(
            422, "invalid_request", f"body: more than {FIELDS_MAX} fields; select fewer"
        ) from None
    if (many := sum(value.count("\n") for _, value in pairs)) > LINES_MAX:
        raise refused(
            "body", f"{many} lines are too many; write at most {LINES_MAX}, or use the API"
        )
    return pairs


def read(kind: type[T], pairs: Pairs) -> T:
    """Convert the fields, without the empty ones, to a ``kind``.

    Raises ``Problem`` 422, which names each wrong field. A field can be given only once, unless
    ``kind`` has a list for it.
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
    return validated(kind, values)


def query_of(request: Request, kind: type[T]) -> T:
    """Convert the query of a page's address to a ``kind``, as ``read`` does.

    Raises ``Problem`` 422.
    """
    return read(kind, request.query_params.multi_items())


def validated(kind: type[T], values: Mapping[str, object]) -> T:
    """Convert the values, which can be strings, to a ``kind``.

    Raises ``Problem`` 422, which names each wrong field.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False), kind.model_json_schema()) from None


#: The maximum number of actions that are remembered.
KEPT_MAX = 2000

_KEY = r"^[0-9a-f]{32}$"
Key = Annotated[str, StringConstraints(pattern=_KEY)]


class KeyedForm(BaseModel):
    """A form with a key. The form for every action sends a key."""

    model_config = ConfigDict(extra="forbid")

    key: Key


class ActionForm(KeyedForm):
    """The form on the page of a subject. It names one of the subject's actions."""

    subject: ClassVar[Subject]
    acts: ClassVar[tuple[str, ...]] = ()
    """The names of the actions that it offers. If it is empty, the form offers all actions of the
    subject.
    """

    apart: ClassVar[tuple[str, ...]] = ()
    """The fields whose values make it another action, although the key is the same."""

    do: str
    reason: str | None = Field(default=None, max_length=2000)

    @field_validator("do")
    @classmethod
    def _known(cls, do: str) -> str:
        known = cls.acts or [action.name for action in cls.subject.actions]
        if do not in known:
            raise ValueError(f"choose from {', '.join(known)}")
        return do

    @property
    def action(self) -> Action:
        return self.subject.action(self.do)

    @property
    def request_key(self) -> str:
        """The key of this action. Actions with the same key are carried out only once.

        A person can go back to the form and send it again with other values, which asks for another
        action.
        """
        values = [str(getattr(self, name)) for name in self.apart]
        digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()
        return f"{self.key}.{self.do}.{digest[:16]}"

    def sentence(self, fresh: bool, note: str | None, **values: object) -> str:
        """Return a sentence about the result.

        ``fresh`` is true if something was changed. The sentence uses ``values``.
        """
        text = (self.action.done if fresh else self.action.before).format(**values)
        return f"{text} {note}" if note else text


def check_shown(shown: int, row: Any) -> None:
    """Raise ``NotInThisState`` if the row of a run, manager or graph is no longer in the attempt
    that the form showed.
    """
    if shown != row.attempt:
        status = getattr(row, "status", None) or state_word(row.state)
        words = f"it is {status} in attempt {row.attempt} now, but the form showed attempt {shown}"
        raise NotInThisState(f"Nothing was changed: {words}. Load the page again first.")


class Once:
    """The actions of this process, by the keys of their forms.

    A form that is sent again gets the same outcome. Another gateway, or this one after a restart,
    does not know the key, so the sentence can then differ. The database ensures that no action is
    done twice (docs/web-ui.md, "Several gateways").
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[str | None, str], asyncio.Task[Any]] = {}

    async def __call__(self, key: str, act: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Return the outcome of the action.

        A failure is not stored, so that the form can be sent again.
        """
        own = only(), key
        asked = self._asked.get(own)
        if asked is None:
            while len(self._asked) >= KEPT_MAX:
                del self._asked[next(iter(self._asked))]
            asked = self._asked[own] = asyncio.create_task(act())
        try:
            outcome: R = await asyncio.shield(asked)
        except Exception:
            self._asked.pop(own, None)
            raise
        return outcome


async def carry_out(
    request: Request,
    once: Once,
    asked: ActionForm,
    key: object,
    act: Callable[[], Awaitable[str]],
    owner: Subject | None = None,
) -> Response:
    """Carry out an action once, and redirect to the page of its subject, which shows the result.

    ``act`` carries it out and returns a sentence about the result. ``NotInThisState`` counts as a
    result, too. After a deletion, the list of the subjects shows the result. ``key`` identifies the
    subject of the form, or its ``owner``, such as the graph of selected steps.
    """
    subject = owner or asked.subject
    name = f"{subject.noun} {key}"

    async def carried_out() -> Outcome:
        try:
            return Outcome(name, None, True, await act())
        except NotInThisState as error:
            return Outcome(name, None, False, str(error))

    outcome = await once(asked.request_key, carried_out)
    deleted = outcome.done and asked.do == "delete"
    path = f"/{subject.plural}" if deleted else subject.path(key)
    return go_back(request, asked.action.title, outcome, path, tabs=not deleted)


#: The maximum number of characters in a typed command line, because splitting it takes some
#: microseconds per character.
_WORDS_MAX = 16 * 1024
#: The maximum number of values between commas.
_PARTS_MAX = 1000
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


@dataclass(slots=True)
class Wrong:
    """The errors in a form that was sent."""

    detail: str
    fields: Mapping[str, str]
    """A sentence for each wrong field, by the name of the field."""
    focused: str | None = None

    @property
    def sentence(self) -> str:
        """The sentence above the form."""
        if len(self.fields) < 2:
            return self.detail
        return f"Nothing was done: {len(self.fields)} fields are wrong."

    def takes_focus(self, name: str) -> bool:
        """Return whether this wrong field is the first one that the page shows."""
        self.focused = self.focused or name
        return name == self.focused


def mistakes(*checks: Callable[[], object]) -> list[FieldError]:
    """Return the errors that these checks raise, so that a form shows all of them at once.

    A check that fails because another service is unavailable adds nothing.
    """
    found: list[FieldError] = []
    for check in checks:
        try:
            check()
        except (Problem, LifecycleError) as error:
            found += of_error(error).errors
    return found


def typed(pairs: Pairs, known: Iterable[str], *, several: Iterable[str] = ()) -> dict[str, str]:
    """Return the fields that are not empty.

    A field in ``several`` can be given more than once, and its text then has one value on each
    line. Raises ``Problem`` 422 for an unknown field, or for a field that is given twice.
    """
    known, several, found = set(known), set(several), dict[str, list[str]]()
    for name, value in pairs:
        if name not in known:
            raise refused(name, "unknown field; load the form again")
        if name in found and name not in several:
            raise refused(name, "given twice; give it once")
        if value.strip():
            # Browsers send line breaks as this sequence.
            found.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return {name: "\n".join(values) for name, values in found.items()}


def lines(text: str) -> list[str]:
    """Return the lines of a text, without surrounding spaces and without empty lines."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def parts(text: str) -> list[str]:
    """Return the values between commas."""
    return [part.strip() for part in text.split(",", _PARTS_MAX) if part.strip()]


def assignments(field: str, text: str) -> dict[str, str]:
    """Read lines of ``NAME=VALUE``. Values are not changed. Raises ``Problem`` 422."""
    found: dict[str, str] = {}
    for n, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip() or name.strip() in found:
            raise refused(field, f"line {n}: write NAME=VALUE, with each name only once")
        found[name.strip()] = value
    return found


def words(field: str, text: str) -> list[str]:
    """Split a text into words, as a shell does. Raises ``Problem`` 422."""
    if len(text) > _WORDS_MAX:
        raise refused(
            field,
            f"{len(text)} characters are too many; give at most {_WORDS_MAX}, or argv as JSON",
        )
    try:
        return shlex.split(text)
    except ValueError as error:
        raise refused(field, f"{error}; quote as on a command line") from None


def utc_time(field: str, text: str, zone: tzinfo) -> str:
    """Convert a local time of ``zone``, as browsers write it, to UTC.

    Any other text is returned unchanged, and the API reads it. Raises ``Problem`` 422 for a local
    time that does not exist.
    """
    text = text.strip()
    if not LOCAL_TIME.fullmatch(text):
        return text
    try:
        local = datetime.fromisoformat(text)
        found = local.replace(tzinfo=zone).astimezone(UTC)
        exists = found.astimezone(zone).replace(tzinfo=None) == local
    except (ValueError, OverflowError):
        exists = False
    if not exists:
        raise refused(field, f"{text} does not exist in {zone}; give another time")
    return found.isoformat()


def local_time(text: object, zone: tzinfo) -> str:
    """Return a stored time as a local time of ``zone``, or unchanged if ``utc_time`` would not
    restore it.
    """
    stored = str(text)
    try:
        local = datetime.fromisoformat(stored).astimezone(zone).replace(tzinfo=None).isoformat()
        restored = utc_time("", local, zone)
    except (ValueError, OverflowError, Problem):
        return stored
    return local if restored == stored else stored


def whole(text: str) -> int | str:
    """Return the number in a text.

    Any other text is returned unchanged, and the API refuses it later.
    """
    return int(text) if _WHOLE.fullmatch(text.strip()) else text


def read_json(field: str, text: str, kind: type[J], fix: str) -> J:
    """Read JSON as strictly as in a body of the API.

    Raises ``Problem`` 422, with the ``fix`` if the value is not of this ``kind``.
    """
    try:
        found = check_json(text.encode())
    except Problem as problem:
        raise refused(field, f"{fix} ({problem.detail.removeprefix('body: ')})") from None
    if not isinstance(found, kind):
        raise refused(field, fix)
    return found


def objects(field: str, text: str) -> list[dict[str, Any]]:
    """Read one JSON object from each line that is not empty. Raises ``Problem`` 422."""
    fix = 'write the arguments as JSON, such as {"page": "2"}'
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [read_json(field, line, dict, f"line {n}: {fix}") for n, line in lines]


def can_be_typed(texts: Iterable[str]) -> bool:
    """Return whether a form with one value per line sends these values back unchanged."""
    return not any(set("\r\n\0") & set(text) for text in texts)


def as_words(values: object) -> str | None:
    """Return the text that ``words`` reads as these values, or ``None`` if there is none."""
    text = shlex.join(values) if _are_texts(values) else ""
    return text if text and len(text) <= _WORDS_MAX else None


def as_parts(values: object) -> str | None:
    """Return the text that ``parts`` reads as these values, or ``None`` if there is none."""
    text = ", ".join(values) if _are_texts(values) else ""
    return text if parts(text) == values else None


def _are_texts(values: object) -> TypeGuard[list[str]]:
    return (
        isinstance(values, list)
        and all(isinstance(value, str) for value in values)
        and can_be_typed(values)
    )


def placed(
    problem: Problem, names: Mapping[str, str], kinds: Sequence[str] = (), rest: str | None = None
) -> Wrong:
    """Assign the API's errors to the fields of a form.

    ``names`` maps fields of the API to fields of the form. If the field of the form ends with a
    dot, the rest of the API's field follows: with ``arg.`` for ``args``, ``args.page`` becomes
    ``arg.page``. A field of the API can begin with one of ``kinds``, such as ``run`` in
    ``run.crawler``. It belongs to the field that ``names`` gives for ``run.crawler``, for
    ``crawler``, or else to the field ``rest``.
    """
    found: dict[str, str] = {}
    for error in problem.errors:
        kind, dot, inner = error.field.partition(".")
        within = kind in kinds and bool(dot)
        path = inner if within else error.field
        first = re.split(r"[.\[]", path)[0]
        own = names.get(f"{kind}.{first}" if within else first, names.get(first)) or rest
        inside = path.removeprefix(first).lstrip(".")
        if own and own.endswith("."):
            found.setdefault(own + inside, error.message)
            continue
        place = path if own == rest and path not in (own, "body") else inside
        if own:
            found.setdefault(own, f"{place}: {error.message}" if place else error.message)
    return Wrong(problem.detail, found)


async def keep(
    commands: NamedCommands[Any], given: Mapping[str, str], body: Any, pause: Any
) -> None:
    """Create or change the schedule or webhook that a form names.

    Then pause or resume it if the form requests that.
    """
    name = given.get("name", "").strip()
    row = await commands.seen(name)
    spec = await in_turn(math.inf, body.spec)
    if row is None or row.definition != spec.document():
        check_seen(given, None if row is None else row.revision)
        await commands.put(name, signed(body))
    if "paused" in given and "was_paused" not in given:
        await commands.pause(name, signed(pause))
    elif "was_paused" in given and "paused" not in given:
        await commands.resume(name)


def reason(given: Mapping[str, str]) -> bytes:
    """Return the body of a pause as JSON."""
    return json.dumps({"reason": given.get("reason")}).encode()


#: What a form says if its key was used for something else.
USED = (
    "Nothing was started now, because this form has started something with other values before. "
    "To start another one with these values, press Start again."
)


def next_key(given: Mapping[str, str], problem: Problem | None) -> str:
    """Return the key for a form that is shown.

    A refused form keeps its key, because it has started nothing, and a double click must still
    start only one thing. But if the key has already started something with other values, the form
    could never succeed: it gets a new key, and ``problem`` then says what happened.
    """
    if problem is not None and problem.code == "idempotency_mismatch":
        # The key of a graph is its id, unless a person has given one.
        names = {error.field for error in problem.errors}
        if "Idempotency-Key" in names or ("id" in names and "id" not in given):
            problem.detail = USED
            problem.errors = []
            return uuid.uuid4().hex
    key = given.get("key", "")
    return key if re.fullmatch(_KEY, key) else uuid.uuid4().hex


async def sent(
    carry_out: Callable[[], Awaitable[str]], shown: Callable[[Problem], Awaitable[Response]]
) -> Response:
    """Redirect to the page that ``carry_out`` returns, or show the form again with its errors."""
    try:
        return RedirectResponse(await carry_out(), 303)
    except (Problem, LifecycleError) as error:
        return await shown(of_error(error))


def check_seen(given: Mapping[str, str], revision: int | None) -> None:
    """Raise ``Problem`` if the form showed another revision than the present one, because it would
    overwrite a change.
    """
    shown = given.get("revision")
    if shown == (None if revision is None else str(revision)):
        return
    if shown is None:
        raise refused(
            "name", "this name already exists; change the existing one, or give another name"
        )
    what = "it was deleted" if revision is None else "somebody changed it"
    raise Problem(
        409,
        "not_in_this_state",
        f"Nothing was saved: {what} after you opened the form. Open it again.",
    )

"""What a host process replied, checked: form, sizes and texts. Nothing of it is believed before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from crawler_lifecycle.domain.bounds import ID_MAX, check_text
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.jobs import JOB_BYTES, SPIDER_MAX
from crawler_lifecycle.domain.managers.manager import (
    CHOICES,
    CYCLE_ENDS,
    PAGE_ITEMS,
    REASON_MAX,
    STAT_NAME_MAX,
    STATE_BYTES,
    STATS_MAX,
    Decision,
    Hooked,
    HookFailed,
    Job,
    Page,
    SourceItem,
)
from crawler_lifecycle.domain.managers.rows import yields_behind
from crawler_lifecycle.domain.run import check_tags

T = TypeVar("T")

#: Entries of one kind in a decision.
ENTRIES_MAX = 10_000
NAME_MAX, SENTENCE_MAX = 200, 1000
OUTCOMES_MAX = 1000
#: Of tries and attempts: far more than there can be.
TRIES_MAX = 2**31 - 1


class Nonsense(Exception):
    """A reply that cannot be; the text says what of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A manager that a module has."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    plan: str
    name: str | None
    description: str
    fingerprint: str
    options: list[dict[str, Any]]
    error: str | None


@dataclass(frozen=True, slots=True)
class FoundModule:
    """A module that was read."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    plans: list[Found]
    files: list[str]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A class that was loaded."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    fingerprint: str
    on_code_change: str
    on_item_error: str
    on_hook_error: str


_FOUND = TypeAdapter(FoundModule)
_LOADED = TypeAdapter(Loaded)
_OUTCOMES = TypeAdapter(list[str])
_PAGE = TypeAdapter(Page)
_DECISION = TypeAdapter(Decision)


def found(reply: object) -> FoundModule:
    """What a module has. Raises ``Nonsense``."""
    module = _checked(_FOUND, reply)
    _text("fingerprint", module.fingerprint, 64)
    for plan in module.plans:
        _text("plan", plan.plan, NAME_MAX)
        _text("fingerprint", plan.fingerprint, 64)
        if len(json.dumps(plan.options)) > JOB_BYTES:
            raise Nonsense(f"options of {plan.plan}: more than {JOB_BYTES} bytes")
    return module


def loaded(reply: object) -> Loaded:
    """What was loaded. Raises ``Nonsense``."""
    one = _checked(_LOADED, reply)
    _text("fingerprint", one.fingerprint, 64)
    for name, known in CHOICES.items():
        if (value := getattr(one, name)) not in known:
            raise Nonsense(f"{name}: {value!r:.80} is not allowed; give one of {', '.join(known)}")
    return one


def outcomes(reply: object) -> frozenset[str]:
    """The failed outcomes of an object. Raises ``Nonsense``."""
    told = _checked(_OUTCOMES, reply)
    if len(told) > OUTCOMES_MAX:
        raise Nonsense(f"failed_outcomes: {len(told)} of them; {OUTCOMES_MAX} are the most")
    for outcome in told:
        _text("failed_outcomes", outcome, REASON_MAX)
    return frozenset(told)


def page(reply: object, after: int) -> Page:
    """The next yields after this position. Raises ``Nonsense``."""
    one = _checked(_PAGE, reply)
    if len(one.items) > PAGE_ITEMS:
        raise Nonsense(f"a page of {len(one.items)} yields; {PAGE_ITEMS} are the most")
    try:
        _number("position", one.position)
        if len(yields_behind(one, after)) != len(one.items) or one.position < after:
            raise Nonsense(f"a page after position {after} that begins or ends before it")
    except InvalidRequest as why:
        raise Nonsense(str(why)) from None
    for item in one.items:
        if (item.job is None) == (item.error is None):
            raise Nonsense(f"position {item.position}: a yield is a job or has an error")
        _text("error", item.error, SENTENCE_MAX * 4)
    _text("error", one.error, SENTENCE_MAX * 4)
    return replace(one, items=[_item(item) for item in one.items])


def _item(item: SourceItem) -> SourceItem:
    problem = None if item.job is None else job_problem(item.job)
    return item if problem is None else SourceItem(item.position, None, problem)


def decision(reply: object) -> Decision:
    """What a cycle decided. Raises ``Nonsense``."""
    one = _checked(_DECISION, reply)
    if len(one.hooked) + len(one.failed) > CYCLE_ENDS:
        raise Nonsense(f"more ends than the {CYCLE_ENDS} that a cycle gets")
    for name in ("added", "delayed", "picked", "flow_tags"):
        if len(getattr(one, name)) > ENTRIES_MAX:
            raise Nonsense(f"{name}: {len(getattr(one, name))} of them; {ENTRIES_MAX} are the most in one cycle")
    for job in [entry.job for entry in one.added] + [entry.job for entry in one.picked]:
        problem = job_problem(job)
        if problem is not None:
            raise Nonsense(problem)
    if one.state is not None and _size("state", one.state) > STATE_BYTES:
        raise Nonsense(f"state: more than {STATE_BYTES} bytes of JSON; keep less in self.state")
    ends: list[Hooked | HookFailed] = [*one.hooked, *one.failed]
    for end in ends:
        _number("item_id", end.item_id)
        _number("attempt", end.attempt, TRIES_MAX)
    for added in one.added:
        _number("ref", added.ref)
        _number("seq", added.seq or 0)
        _number("retry", added.retry, TRIES_MAX)
    for picked in one.picked:
        _number("item_id", picked.item_id)
        _number("seq", picked.seq)
    for item_id in one.delayed:
        _number("delayed", item_id)
    if len(one.stats) > STATS_MAX:
        raise Nonsense(f"stats: {len(one.stats)} of them; {STATS_MAX} are the most")
    _tags(one.flow_tags)
    for name in one.stats:
        _text("the name of a statistic", name, STAT_NAME_MAX)
    for failure in one.failed:
        _text("error", failure.error, SENTENCE_MAX * 4)
    for picked in one.picked:
        _text("cap_key", picked.cap_key, NAME_MAX)
    _text("close_reason", one.close_reason, REASON_MAX)
    _text("error", one.error, SENTENCE_MAX * 4)
    _text("waiting", one.waiting, SENTENCE_MAX)
    if one.again_s is not None and not one.again_s >= 0:
        raise Nonsense(f"again_s: {one.again_s} is not allowed; give seconds from now on")
    return one


def job_problem(job: Job) -> str | None:
    """Why this cannot be a job, whatever crawlers there are; ``None`` when it can."""
    try:
        check_text("spider", job.spider, SPIDER_MAX, needed=True)
        _text("project_id", job.project_id, NAME_MAX)
        _tags(job.tags)
        for name, values in (("spider_args", job.spider_args), ("job_settings", job.job_settings)):
            for key in values:
                _text(f"a name in {name}", key, NAME_MAX)
            if _size(name, values) > JOB_BYTES:
                raise Nonsense(f"{name}: more than {JOB_BYTES} bytes of JSON; pass a reference instead")
    except (Nonsense, InvalidRequest) as why:
        return str(why)
    return None


def _checked(adapter: TypeAdapter[T], reply: object) -> T:
    try:
        return adapter.validate_python(reply)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Nonsense(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None


def _tags(tags: list[str]) -> None:
    try:
        check_tags("tags", tags)
    except InvalidRequest as why:
        raise Nonsense(str(why)) from None


def _text(name: str, value: str | None, most: int) -> None:
    """Raise ``Nonsense`` unless every database takes this text."""
    if value is None:
        return
    if len(value) > most:
        raise Nonsense(f"{name}: {value[:60]!r} … has {len(value)} characters; {most} are the most")
    if "\0" in value or not _encodable(value):
        raise Nonsense(f"{name}: {value[:60]!r} has characters that are no text (NUL, or half of a pair)")


def _number(name: str, value: int, most: int = ID_MAX) -> None:
    """Raise ``Nonsense`` unless every database takes this number."""
    if not -most <= value <= most:
        raise Nonsense(f"{name}: {value} is not allowed; {most} is the most")


def _size(name: str, value: Mapping[str, Any]) -> int:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise Nonsense(f"{name}: {error}") from None
    if "\\u0000" in text or not _encodable(text):
        raise Nonsense(f"{name}: it has characters that are no text (NUL, or half of a pair)")
    return len(text.encode())


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

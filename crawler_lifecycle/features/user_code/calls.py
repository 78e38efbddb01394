"""Checks the replies of a host process: their form, sizes and strings. No reply is used before it
is checked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from crawler_lifecycle.domain.bounds import ID_MAX, INT_MAX, check_text
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import check_tags
from crawler_lifecycle.features.managers.domain.jobs import JOB_BYTES, SPIDER_MAX
from crawler_lifecycle.features.managers.domain.manager import (
    CHOICES,
    CYCLE_ENDS,
    PAGE_ITEMS,
    REASON_MAX,
    STAT_NAME_MAX,
    STATE_BYTES,
    STATS_MAX,
    Decision,
    Job,
    Page,
    SourceItem,
    yields_behind,
)

from .wire import NAME_MAX, TEXT_MAX

T = TypeVar("T")

#: The maximum number of entries in a list, by field; 10,000 for other fields.
ENTRIES_MAX = {"items": PAGE_ITEMS, "failed_outcomes": 1000}
#: The largest number or the length of the longest string, by field; ``ID_MAX`` and ``TEXT_MAX`` for
#: other fields.
MOST = {
    "attempt": INT_MAX,
    "cap_key": NAME_MAX,
    "close_reason": REASON_MAX,
    "failed_outcomes": REASON_MAX,
    "fingerprint": 64,
    "plan": NAME_MAX,
    "project_id": NAME_MAX,
    "retry": INT_MAX,
    "retry_of": NAME_MAX,
    "waiting": 1000,
}


@dataclass(frozen=True, slots=True)
class UserCodeEntry:
    """A manager's class in a module, or a function that builds a graph."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    plan: str
    kind: Literal["manager", "graph"]
    name: str | None
    description: str
    fingerprint: str
    options: list[dict[str, Any]]
    error: str | None


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """The user code in a module."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    user_code: list[UserCodeEntry]
    files: list[str]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LoadedClass:
    """A loaded class."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    fingerprint: str
    on_code_change: str
    on_item_error: str
    on_hook_error: str


_adapter = functools.cache(TypeAdapter)


def found(reply: object) -> ModuleReport:
    """Return the user code in a module. Raises ``InvalidRequest`` for an invalid reply, like all
    functions here.
    """
    module = _checked(ModuleReport, reply)
    for plan in module.user_code:
        if len(json.dumps(plan.options)) > JOB_BYTES:
            raise InvalidRequest(
                f"options of {plan.plan}: more than {JOB_BYTES} bytes; define fewer or shorter ones"
            )
    return module


def loaded(reply: object) -> LoadedClass:
    """Return the facts about the loaded class."""
    one = _checked(LoadedClass, reply)
    for name, known in CHOICES.items():
        if (value := getattr(one, name)) not in known:
            raise InvalidRequest(
                f"{name}: {value!r:.80} is not allowed; give one of {', '.join(known)}"
            )
    return one


def outcomes(reply: object) -> frozenset[str]:
    """Return the failed outcomes of an object."""
    return frozenset(_checked(list[str], reply, "failed_outcomes"))


def page(reply: object, after: int) -> Page:
    """Return the yields after this position."""
    one = _checked(Page, reply)
    if len(yields_behind(one, after)) != len(one.items) or one.position < after:
        raise InvalidRequest(f"the page after position {after} contains earlier positions")
    for item in one.items:
        if (item.job is None) == (item.error is None):
            raise InvalidRequest(
                f"position {item.position}: a yield must have either a job or an error"
            )
    return replace(one, items=[_item(item) for item in one.items])


def _item(item: SourceItem) -> SourceItem:
    try:
        if item.job is not None:
            check_job(item.job)
        return item
    except InvalidRequest as why:
        return SourceItem(item.position, None, str(why))


def decision(reply: object) -> Decision:
    """Return the decision of a cycle."""
    one = _checked(Decision, reply)
    if len(one.hooked) + len(one.failed) > CYCLE_ENDS:
        raise InvalidRequest(f"more ended jobs than the {CYCLE_ENDS} that a cycle can have")
    for job in [entry.job for entry in one.added] + [entry.job for entry in one.picked]:
        check_job(job)
    if one.state is not None and _size("state", one.state) > STATE_BYTES:
        raise InvalidRequest(
            f"state: more than {STATE_BYTES} bytes of JSON; keep less in self.state"
        )
    if len(one.stats) > STATS_MAX:
        raise InvalidRequest(f"stats: {len(one.stats)} are too many; give at most {STATS_MAX}")
    for name in one.stats:
        _check_text("the name of a statistic", name, STAT_NAME_MAX)
    check_tags("flow_tags", one.flow_tags)
    if one.again_s is not None and not one.again_s >= 0:
        raise InvalidRequest(f"again_s: {one.again_s} is not allowed; give 0 or more seconds")
    return one


def check_job(job: Job) -> None:
    """Raise ``InvalidRequest`` unless these values are allowed in a job."""
    check_text("spider", job.spider, SPIDER_MAX, needed=True)
    check_tags("tags", job.tags)
    _check_bounds(job.project_id, "project_id")
    for name, values in (("spider_args", job.spider_args), ("job_settings", job.job_settings)):
        for key in values:
            _check_text(f"a name in {name}", key, NAME_MAX)
        if _size(name, values) > JOB_BYTES:
            raise InvalidRequest(
                f"{name}: more than {JOB_BYTES} bytes of JSON; pass a reference instead"
            )


def _checked(kind: type[T], reply: object, name: str = "") -> T:
    try:
        one: T = _adapter(kind).validate_python(reply)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidRequest(
            f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        ) from None
    _check_bounds(one, name)
    return one


def _check_bounds(value: object, name: str) -> None:
    """Raise ``InvalidRequest`` unless every database accepts all values in this object.

    ``check_job`` checks jobs.
    """
    if isinstance(value, list):
        if len(value) > (most := ENTRIES_MAX.get(name, 10_000)):
            raise InvalidRequest(f"{name}: {len(value)} are too many; give at most {most}")
        for inner in value:
            _check_bounds(inner, name)
    elif is_dataclass(value) and not isinstance(value, Job):
        for field in fields(value):
            _check_bounds(getattr(value, field.name), field.name)
    elif isinstance(value, str):
        _check_text(name, value, MOST.get(name, TEXT_MAX))
    elif isinstance(value, int) and abs(value) > (most := MOST.get(name, ID_MAX)):
        raise InvalidRequest(f"{name}: {value} is not allowed; give at most {most}")


def _check_text(name: str, value: str, most: int) -> None:
    if len(value) > most:
        raise InvalidRequest(
            f"{name}: {value[:60]!r} … has {len(value)} characters; give at most {most}"
        )
    if not _is_text(value):
        raise InvalidRequest(
            f"{name}: {value[:60]!r} has invalid characters; remove NUL and lone surrogates"
        )


def _size(name: str, value: Mapping[str, Any]) -> int:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from None
    if "\\u0000" in text or not _is_text(text):
        raise InvalidRequest(f"{name}: it has invalid characters; remove NUL and lone surrogates")
    return len(text.encode())


def _is_text(value: str) -> bool:
    """Return whether every database accepts this string."""
    return "\0" not in value and value.encode(errors="replace").decode() == value

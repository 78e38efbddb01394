"""Events as CloudEvents 1.0 documents, for the event bus, the event file and pushes
(docs/events.md).

All receivers get the same document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from crawler_lifecycle.domain.names import EVENTS_ONCE
from crawler_lifecycle.ports.runs import Event

SOURCE = "crawler-lifecycle"

#: An EventBridge entry must be smaller than 256 KiB (docs.aws.amazon.com, "Calculating PutEvents
#: event entry size").
ENTRY_MAX = 256 * 1024
#: The number of bytes that the field ``Time`` adds to the size of an entry.
ENTRY_TIME = 14

#: A document that is too large is cut in these steps until it fits. 1. ``cause`` is cut to
#: ``CAUSE_MAX`` characters.
#: 2. Every text is cut to ``TEXT_MAX`` characters. 3. Fields outside ``CORE`` are removed, the
#:   largest first.
#: 4. The strings in the ``CORE`` fields are cut to ``CORE_MAX`` characters.
CAUSE_MAX = 2000
TEXT_MAX = 500
CORE_MAX = 100
#: Fields that are never removed, because they identify the run or manager and its result.
CORE = (
    "run_id",
    "run_uid",
    "attempt",
    "crawler",
    "trigger",
    "status",
    "outcome",
    "ended_by",
    "started",
    "manager_id",
    "manager_uid",
    "name",
    "flow_id",
    "project",
)
#: The field in ``data`` that marks a cut document.
TRUNCATED = "truncated"

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def event_id(event: Event) -> str:
    """Return the id by which receivers recognise a repeated delivery.

    Events of the types in ``EVENTS_ONCE`` occur once per attempt, so their id is the event's key.
    The id of any other event ends with its sequence number.
    """
    return event.key if event.type in EVENTS_ONCE else f"{event.key}/{event.seq}"


def cloud_event(event: Event) -> dict[str, object]:
    """Return the whole event with the field names of CloudEvents 1.0.

    ``sequence`` is a CloudEvents extension. Compared as text, a later event has a greater
    ``sequence`` than an earlier one.
    """
    return {
        "specversion": "1.0",
        "id": event_id(event),
        "source": SOURCE,
        "type": event.type,
        "time": event.created_at.isoformat(),
        "subject": event.subject,
        "sequence": f"{event.seq:019d}",
        "datacontenttype": "application/json",
        "data": _clean(event.body),
    }


def event_text(event: Event, limit: int) -> str:
    """Return the document as ASCII JSON of at most ``limit`` bytes.

    A document that exceeds this limit is cut and gets ``truncated: true`` in its ``data``. The same
    event is always cut in the same way. Raises ``TypeError`` or ``ValueError`` if the body cannot
    be written as JSON, and ``ValueError`` if even the cut document is too long.
    """
    document = cloud_event(event)
    text = _json(document)
    if len(text) <= limit:
        return text
    for data in _ever_smaller(_clean(event.body)):
        text = _json({**document, "data": {**data, TRUNCATED: True}})
        if len(text) <= limit:
            return text
    raise ValueError(f"the event exceeds {limit} bytes even when it is cut to its core fields")


def bus_text(event: Event) -> str:
    """Return the document for an EventBridge entry, cut if the entry would be too large.

    The same text is written to the event file, so that cut documents appear in development, too.
    Raises ``TypeError`` and ``ValueError`` as ``event_text`` does.
    """
    around = ENTRY_TIME + sum(len(part.encode()) for part in (SOURCE, event.type, event.subject))
    return event_text(event, ENTRY_MAX - 1 - around)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _clean(body: Mapping[str, object]) -> dict[str, object]:
    """Return a copy without lone surrogates, because many JSON readers refuse a document that
    contains one.
    """
    return {str(_cleaned(key)): _cleaned(value) for key, value in body.items()}


def _cleaned(value: object) -> object:
    match value:
        case str():
            return _LONE_SURROGATE.sub("\ufffd", value)
        case Mapping():
            return _clean(value)
        case list() | tuple():
            return [_cleaned(item) for item in value]
    return value


def _ever_smaller(data: dict[str, object]) -> Iterator[dict[str, object]]:
    if isinstance(data.get("cause"), str):
        data = {**data, "cause": _shortened(data["cause"], CAUSE_MAX)}
        yield data
    data = {key: _shortened(value, TEXT_MAX) for key, value in data.items()}
    yield data
    for key in sorted(data.keys() - set(CORE), key=lambda key: (-len(_json(data[key])), key)):
        data = {name: value for name, value in data.items() if name != key}
        yield data
    yield {
        k: _shortened(v, CORE_MAX)
        for k, v in data.items()
        if v is None or isinstance(v, str | int | float)
    }


def _shortened(value: object, most: int) -> object:
    match value:
        case str() if len(value) > most:
            return value[: most - 1] + "…"
        case Mapping():
            return {key: _shortened(item, most) for key, item in value.items()}
        case list():
            return [_shortened(item, most) for item in value]
    return value

"""Events as receivers see them: one CloudEvents 1.0 document for the bus, the event file and pushes.

docs/events.md describes it. The document is the same for every receiver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from crawler_lifecycle.domain.names import EVENTS_ONCE
from crawler_lifecycle.ports.runs import Event

SOURCE = "crawler-lifecycle"

#: EventBridge takes entries smaller than this: 256 KiB (docs.aws.amazon.com, "Calculating PutEvents event entry size").
ENTRY_MAX = 256 * 1024
#: The size of ``Time`` in an entry.
ENTRY_TIME = 14

#: A document that is too large is cut in this order, until it fits: characters of ``cause`` beyond the first figure,
#: characters of every text beyond the second, whole fields (the largest first), and at last characters of the fields
#: that are never left out.
CAUSE_MAX = 2000
TEXT_MAX = 500
CORE_MAX = 100
#: The run or manager and its result: these fields are never left out.
CORE = (
    *("run_id", "run_uid", "attempt", "crawler", "trigger", "status", "outcome", "started"),
    *("manager_id", "manager_uid", "name", "flow_id"),
)
#: The field of ``data`` that says so.
TRUNCATED = "truncated"

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def event_id(event: Event) -> str:
    """The id by which receivers recognise a repeated delivery.

    An event that happens once in an attempt is named by its subject, attempt and type; a repeated one also by its
    sequence number.
    """
    return event.key if event.type in EVENTS_ONCE else f"{event.key}/{event.seq}"


def cloud_event(event: Event) -> dict[str, object]:
    """The event with the field names of CloudEvents 1.0, whole.

    ``sequence`` is the CloudEvents extension of that name: of two events the later one has the greater text.
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
    """The document as JSON in ASCII, of at most ``limit`` characters, which are bytes.

    One that is longer is cut, with ``truncated: true`` in its ``data``; the same event is always cut in the same way.
    Raises ``TypeError`` and ``ValueError`` when the body is not JSON.
    """
    document = cloud_event(event)
    text = _json(document)
    if len(text) <= limit:
        return text
    for data in _ever_smaller(_clean(event.body)):
        text = _json({**document, "data": {**data, TRUNCATED: True}})
        if len(text) <= limit:
            return text
    raise ValueError(f"not even the core of the event fits into {limit} bytes")


def bus_text(event: Event) -> str:
    """The document for an EventBridge entry, cut so that the entry is not too large.

    The event file has the same text, so that cut documents are not seen in production only. Raises ``TypeError`` and
    ``ValueError`` as ``event_text`` does.
    """
    around = ENTRY_TIME + sum(len(part.encode()) for part in (SOURCE, event.type, event.subject))
    return event_text(event, ENTRY_MAX - 1 - around)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _clean(body: Mapping[str, object]) -> dict[str, object]:
    """A copy without lone surrogates, which many JSON readers refuse together with the whole document."""
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
    yield {k: _shortened(v, CORE_MAX) for k, v in data.items() if v is None or isinstance(v, str | int | float)}


def _shortened(value: object, most: int) -> object:
    match value:
        case str() if len(value) > most:
            return value[: most - 1] + "…"
        case Mapping():
            return {key: _shortened(item, most) for key, item in value.items()}
        case list():
            return [_shortened(item, most) for item in value]
    return value

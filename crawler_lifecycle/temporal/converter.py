"""A tolerant payload converter: turns an unreadable payload into a value with the reason, so that
no workflow fails.

The SDK decodes payloads before our code runs. An exception there fails the workflow task on every
retry. A single signal in an unknown encoding would block a run forever. Unknown heartbeat details
would fail an activity permanently. Therefore an unreadable payload becomes ``UndecodedPayload``
where no type is expected: in input, signals, updates, heartbeats and details of failures. The code
that reads it decides what to do. Where a type is expected, decoding raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import (
    PydanticJSONPlainPayloadConverter,
    PydanticPayloadConverter,
)
from temporalio.converter import CompositePayloadConverter

from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.values import UndecodedPayload

#: The encoding of an encrypted payload, and the metadata field for the reason why a codec could not
#: decrypt it.
ENCRYPTED = b"binary/encrypted"
WHY = "crawler-lifecycle-unreadable"
_WHY_MAX = 200

#: The ends of requests without values in newer fields. Builds before migrations 0012 and 0014
#: refuse requests with these fields, and a worker of such a build may continue the run.
_EMPTY_FIELDS = (b',"canary":null', b',"code":null', b',"version":null', b',"sites":[]')


class RequestConverter(PydanticJSONPlainPayloadConverter):
    """Pydantic's converter to JSON, which leaves out newer fields of requests that are empty."""

    def to_payload(self, value: Any) -> Payload | None:
        """See the base class."""
        payload = super().to_payload(value)
        request = getattr(value, "request", value)
        if payload is not None and isinstance(request, RunRequest):
            for field in _EMPTY_FIELDS:
                # In JSON, no text contains this sequence, because its quotes would be escaped.
                payload.data = payload.data.replace(field, b"")
        return payload


#: Encoding converters, shared by the whole process because they cache Pydantic's type adapters.
#: Each workflow has its own payload converter, which would otherwise build these again.
_ENCODINGS = tuple(
    RequestConverter() if isinstance(converter, PydanticJSONPlainPayloadConverter) else converter
    for converter in PydanticPayloadConverter().converters.values()
)


def describe(payload: Payload, error: Exception) -> UndecodedPayload:
    """Return the reason why a payload cannot be read, with the fix."""
    encoding = payload.metadata.get("encoding", b"")
    if encoding == ENCRYPTED:
        why = payload.metadata.get(
            WHY, b"it is encrypted, and this process has no key; set LIFECYCLE_PAYLOADS__KEYS"
        )
        return UndecodedPayload(why.decode("utf-8", "replace"), locked=True)
    if isinstance(error, KeyError):
        shown = encoding.decode("utf-8", "replace")
        return UndecodedPayload(
            f"its encoding {shown[:60]!r} is unknown; send JSON, with the encoding json/plain"
        )
    words = " ".join(str(error).split())
    return UndecodedPayload(
        f"it cannot be decoded ({type(error).__name__}: {words})"[:_WHY_MAX] + "; send JSON"
    )


class TolerantPayloadConverter(PydanticPayloadConverter):
    """Pydantic's converter.

    Where no type is expected, it returns ``UndecodedPayload`` for an unreadable payload.
    """

    def __init__(self) -> None:
        CompositePayloadConverter.__init__(self, *_ENCODINGS)

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """Decode payloads; see the base class. Raises an error only where a type is expected."""
        hints: Sequence[Any] = type_hints or [None] * len(payloads)
        return [self._value(payload, hint) for payload, hint in zip(payloads, hints, strict=True)]

    def _value(self, payload: Payload, hint: Any) -> Any:
        if hint is not None and hint is not Any:
            return super().from_payloads([payload], [hint])[0]
        try:
            return super().from_payloads([payload])[0]
        except Exception as error:  # unknown bytes can cause any error in a decoder
            return describe(payload, error)

"""Tolerant payload converter: a payload that cannot be read becomes a value that says why, and fails no workflow.

The SDK decodes before any code of ours runs, and an exception there fails the whole workflow task, again and again: one
signal in an encoding that we do not know would hold a run up for ever, and heartbeat details of a foreign worker would
fail an activity for good. So without an expected type (input, signals, updates, heartbeats, details of failures) an
unreadable payload becomes ``Undecoded``, and its reader decides. With an expected type, decoding still raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter

from crawler_lifecycle.domain.undecoded import Undecoded

#: Encoding of a payload that is encrypted, and where a codec writes why it could not open one.
ENCRYPTED = b"binary/encrypted"
WHY = "crawler-lifecycle-unreadable"
_WHY_MAX = 200

#: Shared by all converters of the process. It keeps the built type adapters; each workflow has its own converter, which
#: would otherwise build them again.
_ENCODINGS = tuple(PydanticPayloadConverter().converters.values())


def describe(payload: Payload, error: Exception) -> Undecoded:
    """The reason why a payload cannot be read, with the cure."""
    encoding = payload.metadata.get("encoding", b"")
    if encoding == ENCRYPTED:
        told = payload.metadata.get(WHY, b"it is encrypted, and this process has no key; set LIFECYCLE_PAYLOADS__KEYS")
        return Undecoded(told.decode("utf-8", "replace"), locked=True)
    if isinstance(error, KeyError):
        shown = encoding.decode("utf-8", "replace")
        return Undecoded(f"its encoding {shown[:60]!r} is unknown; send JSON, with the encoding json/plain")
    words = " ".join(str(error).split())
    return Undecoded(f"it cannot be decoded ({type(error).__name__}: {words})"[:_WHY_MAX] + "; send JSON")


class TolerantPayloadConverter(PydanticPayloadConverter):
    """Pydantic's converter, which marks what it cannot read where no type is expected."""

    def __init__(self) -> None:
        CompositePayloadConverter.__init__(self, *_ENCODINGS)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See the base class. Raises only where a type is expected."""
        hints: Sequence[Any] = type_hints or [None] * len(payloads)
        return [self._value(payload, hint) for payload, hint in zip(payloads, hints, strict=True)]

    def _value(self, payload: Payload, hint: Any) -> Any:
        if hint is not None and hint is not Any:
            return super().from_payloads([payload], [hint])[0]
        try:
            return super().from_payloads([payload])[0]
        except Exception as error:  # whatever foreign bytes do to a decoder
            return describe(payload, error)

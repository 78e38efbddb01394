"""Signatures of Standard Webhooks 1.0: three headers that prove the sender, the body and the time
to a receiver.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from crawler_lifecycle.domain.errors import InvalidRequest

PREFIX = "whsec_"
#: The minimum number of bytes of a secret.
LEAST = 24
#: The maximum number of bytes of a secret.
MOST = 64


def read_secret(reference: str, text: str | None) -> bytes:
    """Read the key from the value of a variable.

    Raises ``InvalidRequest``; the message never shows the key.
    """
    name = reference.removeprefix("env:")
    if not text:
        raise InvalidRequest(
            f"secrets: the variable {name} is not set for this worker; export it, and start "
            "crawlctl dev or the worker "
            "again"
        )
    try:
        key = base64.b64decode(text.strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not LEAST <= len(key) <= MOST:
        fix = (
            f"whsec_ and {LEAST} to {MOST} random bytes in base64: echo whsec_$(openssl rand "
            "-base64 32)"
        )
        raise InvalidRequest(
            f"secrets: the value of the variable {name} is not a valid webhook secret; give {fix}"
        )
    return key


def message_id(event_id: str) -> str:
    """Return the id of an event for the header, which is the same for every try.

    It contains no full stop, because full stops separate the signed parts.
    """
    return quote(event_id, safe="/-_~:", errors="replace").replace(".", "_")


def signed_headers(id: str, at: int | str, body: bytes, keys: Sequence[bytes]) -> Mapping[str, str]:
    """Return the headers of one try at the time ``at`` (seconds since 1970), with one signature for
    each key.
    """
    content = f"{id}.{at}.".encode() + body
    signatures = [
        base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys
    ]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def verified(headers: Mapping[str, str], body: bytes, key: bytes) -> bool:
    """Return whether a delivery with these headers has a signature made with this key."""
    id = headers.get("webhook-id", "")
    own = signed_headers(id, headers.get("webhook-timestamp", ""), body, [key])
    theirs = headers.get("webhook-signature", "").encode().split()
    return any(hmac.compare_digest(own["webhook-signature"].encode(), given) for given in theirs)

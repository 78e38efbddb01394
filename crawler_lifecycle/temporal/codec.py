"""The payload codec, which encrypts the payloads in Temporal's histories with AES-GCM.

It is off until keys are set.

The format is that of Temporal's own samples (``binary/encrypted``, ``encryption-key-id``, nonce
before ciphertext). A codec server made from these samples, with the same key, can show our payloads
in Temporal's UI.

Unencrypted payloads are accepted too: a scheduler without a key can start runs, and Temporal's CLI
can stop them.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import InvalidRequest

from .converter import ENCRYPTED, WHY

SETTING = "LIFECYCLE_PAYLOADS__KEYS"
ENCODING = ENCRYPTED
_KEY_BYTES = 32
_NONCE_BYTES = 12
_HOW = (
    "give NAME=KEY[,NAME=KEY], each key 32 bytes in base64 (openssl rand -base64 32); the first "
    "one encrypts"
)


def read_keys(text: str) -> dict[str, bytes]:
    """Return the keys by name, in the given order.

    Raises ``InvalidRequest``, whose message contains no key.
    """
    keys: dict[str, bytes] = {}
    for n, part in enumerate(
        filter(None, (part.strip() for part in text.replace("\n", ",").split(","))), start=1
    ):
        name, _, value = part.partition("=")
        try:
            key = base64.b64decode(value.strip(), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"{SETTING}: key {n} is not valid base64; {_HOW}") from None
        if not name.strip() or len(key) != _KEY_BYTES:
            raise InvalidRequest(f"{SETTING}: key {n} has {len(key)} bytes or no name; {_HOW}")
        if name.strip() in keys:
            raise InvalidRequest(f"{SETTING}: two keys have the name {name.strip()!r}; {_HOW}")
        keys[name.strip()] = key
    if not keys:
        raise InvalidRequest(f"{SETTING}: no key; {_HOW}")
    return keys


class Encryption(PayloadCodec):
    """Encrypts with the first key, and decrypts with all keys."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = {name: AESGCM(key) for name, key in keys.items()}
        self._first = next(iter(self._keys))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt every payload, including its metadata."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt encrypted payloads.

        A payload that none of our keys can decrypt stays encrypted and is marked with the reason,
        and the code that reads it decides what to do. An exception here would fail every workflow
        task with this payload, and anybody can send one.
        """
        return [
            self._decrypted(p) if p.metadata.get("encoding") == ENCODING else p for p in payloads
        ]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce = os.urandom(_NONCE_BYTES)
        data = nonce + self._keys[self._first].encrypt(nonce, payload.SerializeToString(), None)
        return Payload(
            metadata={"encoding": ENCODING, "encryption-key-id": self._first.encode()}, data=data
        )

    def _decrypted(self, payload: Payload) -> Payload:
        name = payload.metadata.get("encryption-key-id", b"").decode("utf-8", "replace")
        key = self._keys.get(name)
        if key is None:
            known = ", ".join(self._keys)
            return _marked(
                payload,
                f"it is encrypted with the key {name!r}; {SETTING} only has {known}; add that key",
            )
        try:
            plain = key.decrypt(payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            return _marked(
                payload, f"the key {name!r} cannot decrypt it; the payload or the key was changed"
            )
        return Payload.FromString(plain)


def _marked(payload: Payload, why: str) -> Payload:
    marked = Payload()
    marked.CopyFrom(payload)
    marked.metadata[WHY] = why.encode()
    return marked


def codec_of(keys: SecretStr | None) -> PayloadCodec | None:
    """Return the codec for the setting; ``None`` if it is not set.

    From then on, logs and errors never show its keys.

    Raises ``InvalidRequest``.
    """
    if keys is None:
        return None
    known = read_keys(keys.get_secret_value())
    redaction.learn(base64.b64encode(key).decode() for key in known.values())
    return Encryption(known)

"""Signatures, as the public library of Standard Webhooks reads them."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.webhooks.domain.signing import (
    message_id,
    read_secret,
    signed_headers,
)

KEYS = st.binary(min_size=24, max_size=64)


@given(
    keys=st.lists(KEYS, min_size=1, max_size=2),
    text=st.text(max_size=40),
    id=st.text(min_size=1, max_size=40),
)
def test_the_public_library_verifies_each_secret(keys: list[bytes], text: str, id: str) -> None:
    body = json.dumps({"data": text}).encode()
    headers = dict(signed_headers(message_id(id), int(time.time()), body, keys))
    for key in keys:
        Webhook(base64.b64encode(key).decode()).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(base64.b64encode(b"another one, as long as it may be").decode()).verify(
            body, headers
        )
    with pytest.raises(WebhookVerificationError):
        Webhook(base64.b64encode(keys[0]).decode()).verify(body + b" ", headers)


@given(st.text(max_size=60))
def test_ids_are_header_values_without_a_full_stop(text: str) -> None:
    found = message_id(text)
    assert "." not in found
    assert found.isascii()
    assert found.isprintable()
    assert message_id(text) == found


def test_a_secret_is_read_in_both_forms_and_never_shown() -> None:
    key = bytes(range(32))
    text = base64.b64encode(key).decode()
    assert read_secret("env:A", f"whsec_{text}") == read_secret("env:A", f" {text}\n") == key
    for bad in ("whsec_c2hvcnQ=", "whsec_!!", "hunter2", base64.b64encode(bytes(65)).decode()):
        with pytest.raises(InvalidRequest, match="openssl rand") as refused:
            read_secret("env:A", bad)
        assert bad not in str(refused.value)
    with pytest.raises(InvalidRequest, match="the variable A is not set"):
        read_secret("env:A", None)

"""Pusher's documented HTTP API, which checks signatures and limits, with faults."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.faulty_http import Answer, FaultyServer, serving

APP_ID, KEY, SECRET = "4711", "278d425bdf160c739803", "canary-7ad3773142a6692b25b8"

_CHANNEL = re.compile(r"[-a-zA-Z0-9_=@,.;]{1,200}")


@dataclass(frozen=True)
class Triggered:
    """One event as it arrived."""

    name: str
    channels: list[str]
    data: dict[str, Any]
    bytes: int


class PusherServer(FaultyServer):
    """Accepts and records correctly signed events that fit."""

    def __init__(self) -> None:
        super().__init__()
        self.triggered: list[Triggered] = []
        self.data_max = 10_000

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        path, _, query = target.partition("?")
        wrong = _unsigned(method, path, query, body)
        if wrong:
            return _error(401, wrong)
        if not path.startswith(f"/apps/{APP_ID}/"):
            return _error(404, "Unknown app_id")
        if method == "GET" and re.fullmatch(r"/apps/\d+/channels/[^/]+", path):
            return Answer(body=b'{"occupied":false}')
        if (method, path) != ("POST", f"/apps/{APP_ID}/events") or headers[
            "content-type"
        ] != "application/json":
            return _error(400, "no such resource")
        return self._trigger(json.loads(body))

    def _trigger(self, request: dict[str, Any]) -> Answer:
        name, channels, data = request["name"], request["channels"], request["data"]
        if (
            not 1 <= len(channels) <= 100
            or not all(_CHANNEL.fullmatch(c) for c in channels)
            or len(name) > 200
        ):
            return _error(400, "invalid channels or name")
        size = len(data.encode())
        if size > self.data_max:
            return _error(
                413,
                f"The data content of this event exceeds the allowed maximum ({self.data_max} bytes)",
            )
        self.triggered.append(Triggered(name, channels, json.loads(data), size))
        return Answer()


def _error(status: int, text: str) -> Answer:
    return Answer(status, text.encode(), "text/plain")


def _unsigned(method: str, path: str, query: str, body: bytes) -> str | None:
    """Return what is wrong with the signature, by "Generating authentication signatures" of
    Pusher's reference.
    """
    params = dict(pair.split("=", 1) for pair in query.split("&") if "=" in pair)
    given = params.pop("auth_signature", "")
    if params.get("auth_key") != KEY:
        return f"App key {params.get('auth_key')} not in this cluster"
    if params.get("auth_version") != "1.0":
        return "auth_version must be 1.0"
    if abs(time.time() - float(params.get("auth_timestamp", 0))) > 600:
        return "Timestamp expired: Given timestamp not within 600s of server time"
    if body and params.get("body_md5") != hashlib.md5(body).hexdigest():
        return "Invalid body_md5"
    signed = f"{method}\n{path}\n" + "&".join(f"{k.lower()}={params[k]}" for k in sorted(params))
    wanted = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(wanted, given):
        return f"Invalid signature: you should have sent HmacSHA256Hex({json.dumps(signed)}, your_secret_key)"
    return None


@contextmanager
def pusher_server() -> Iterator[PusherServer]:
    """The running server."""
    server = PusherServer()
    with serving(server):
        yield server

"""``crawlctl webhook receive``: deliveries of the real sender, and anything else that may arrive."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import pytest

from crawler_lifecycle.features.webhooks.cli import BODY_MAX
from tests.adapters.test_webhooks import EVENT, send
from tests.cli.cli_support import Crawlctl
from tests.support.receiver import ENVIRONMENT

CRAWLCTL = (sys.executable, "-m", "crawler_lifecycle.cli", "webhook", "receive")


@contextmanager
def receiving(*words: str) -> Iterator[tuple[str, list[str]]]:
    """A receiver in a separate process. Gives its address, and its output once it has ended."""
    printed: list[str] = []
    process = subprocess.Popen(
        [*CRAWLCTL, "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        # If the tests run in the background, a shell made all of them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    try:
        listening = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", listening)
        assert address is not None, listening
        yield address[0], printed
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in err) == (0, False), err
    printed += [out, err]


def test_a_delivery_is_printed_with_what_its_signature_is_worth() -> None:
    with receiving("--secret-env", "CRAWL_HOOK") as (url, printed):
        send(url)
        send(url, "env:CRAWL_HOOK_NEXT")
        send(url, "env:CRAWL_HOOK_NEXT", "env:CRAWL_HOOK")
    out, _ = printed
    assert re.findall(r"^signature: (.*)", out, re.MULTILINE) == ["valid", "invalid", "valid"]
    assert out.count("webhook-id: ") == 3
    assert f'"type": "{EVENT.type}"' in out.replace("crawler-lifecycle.", "")
    assert "Aus, größer" in out


def announced(url: str, length: str) -> bytes:
    """Return the response to a body that was announced with this length, but never arrives."""
    port = int(url.rstrip("/").rpartition(":")[2])
    with closing(socket.create_connection(("127.0.0.1", port), 10)) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
        return connection.recv(100)


def test_what_is_no_event_does_no_harm() -> None:
    with receiving() as (url, printed):
        assert httpx.post(url, content=b"\x1b[31m{").status_code == 204
        assert httpx.post(url, content=b"[" * 20_000).status_code == 204
        assert announced(url, str(BODY_MAX + 1)).startswith(b"HTTP/1.0 413 ")
        assert announced(url, "9" * 5000).startswith(b"HTTP/1.0 413 ")
        assert httpx.get(url).status_code == 501
        send(url)
    out, err = printed
    assert re.findall(r"^signature: (.*)", out, re.MULTILINE) == ["not checked"] * 3
    assert "\x1b" not in out
    assert err.count("refused a delivery") == 2


def test_a_port_in_use_and_a_secret_that_is_not_there_are_one_sentence(
    crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        result = crawlctl("webhook", "receive", "--port", str(port))
    assert (result.code, result.out) == (1, "")
    assert f"port {port} cannot be used: another program listens on it" in result.err
    assert "give another --port" in result.err
    assert crawlctl("webhook", "receive", "--port", "65536").code == 2
    monkeypatch.delenv("CRAWL_HOOK", raising=False)
    result = crawlctl("webhook", "receive", "--port", "0", "--secret-env", "CRAWL_HOOK")
    assert result.code == 2
    assert "the variable CRAWL_HOOK is not set here" in result.err

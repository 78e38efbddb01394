"""Loopback ports on which nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that refuses connections.

    It is reserved meanwhile, because a released one may soon be somebody else's.
    """
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])

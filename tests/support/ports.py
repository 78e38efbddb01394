"""Ports of the loopback interface at which nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that refuses connections.

    It is held meanwhile: one that was only given back may soon be another's.
    """
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])

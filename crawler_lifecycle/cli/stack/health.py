"""Health checks of the parts of the stack: by HTTP, or by Temporal's own protocol."""

from __future__ import annotations

import asyncio
import http.client
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import SplitResult, urlsplit


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Tell whether a GET of this address is answered with 200, or Temporal serves this ``grpc://HOST:PORT/NAMESPACE``."""
    return _status(url, timeout_s) == 200


def responds(url: str, timeout_s: float = 2.0) -> bool:
    """Tell whether somebody answers at all; one that is alive and lacks something says 503."""
    return _status(url, timeout_s) is not None


def _status(url: str, timeout_s: float) -> int | None:
    """The status of the answer, if there is one; Temporal's is 200."""
    address = urlsplit(url)
    if address.scheme == "grpc":
        return 200 if _serves(address, timeout_s) else None
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout_s)
    try:
        connection.request("GET", address.path or "/")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _serves(address: SplitResult, timeout_s: float) -> bool:
    # Mostly nobody listens yet, which takes no client to find out.
    try:
        socket.create_connection((address.hostname or "", address.port or 0), timeout_s).close()
    except OSError:
        return False
    from crawler_lifecycle.temporal.operator.server import serves  # slow to load, and needed here alone

    # A thread of its own: the caller may have an event loop already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, serves(address.netloc, address.path.strip("/"), timeout_s)).result()

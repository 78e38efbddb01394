"""``python -m examples.site`` serves the demonstration site, by default only on this machine."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from types import FrameType

import uvicorn

from examples.site.app import create_app

LOOPBACK = "127.0.0.1"


def main() -> int:
    """Serve until SIGTERM or SIGINT, then end at once with exit code 0."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.site", description="A website to crawl, without internet."
    )
    parser.add_argument(
        "--port", type=int, default=8400, help="port; 0 picks a free one (default: 8400)"
    )
    parser.add_argument(
        "--host", default=LOOPBACK, help="address to listen on (default: loopback only)"
    )
    parser.add_argument(
        "--services", type=int, default=0, metavar="N", help="size of the site; 0 means everything"
    )
    parser.add_argument(
        "--slow-seconds", type=float, default=1.0, metavar="S", help="how slow the slow pages are"
    )
    options = parser.parse_args()

    # uvicorn installs its own handlers before these handlers, and raises the signal again after its
    # shutdown.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)

    # The protocol is named, because asyncio disables Nagle's algorithm (which costs 40 ms for each
    # page) only if it can read the protocol here.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
        listener.listen(128)  # Programs that read the address below may connect at once.
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1

    app = create_app(options.services, options.slow_seconds)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=0,  # A client of a slow page must not delay the end.
    )
    print(f"http://{options.host}:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())

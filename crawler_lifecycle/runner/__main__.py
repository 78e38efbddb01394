"""``python -m crawler_lifecycle.runner …``, and ``python path/to/runner …`` where the package is not installed."""

from __future__ import annotations

import os
import signal
import sys

# Before anything else: process 1 of a container has no default action, so a SIGTERM that came during our imports would
# be lost. Blocked, it waits for us.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD))

if not __package__:
    # Started as a bare folder: make the folder itself the package, under whatever name it was mounted.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(here)
    __package__ = os.path.basename(here)

from .main import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])

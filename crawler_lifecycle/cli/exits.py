"""The exit of our programs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Flush what was written, then end the process at once with ``code``.

    The Temporal SDK's own threads may still run while the interpreter takes itself apart, and then a finished program
    dies by SIGABRT or SIGSEGV (measured: 24 of 70 short programs). Whoever touched a Temporal client leaves this way.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader of a pipe may have left before us
            stream.flush()
    os._exit(code)

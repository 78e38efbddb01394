"""Run a command that dies with its parent: ``python -I -S die_with_parent.py PARENT_PID COMMAND [ARGUMENT…]``.

``crawlctl dev`` starts its parts this way: nobody can end them in order when ``dev`` itself is killed with SIGKILL, and
an orphaned gateway on port 8500 would puzzle whoever starts the next one. Only for parts, never for crawls: those
belong to nobody and outlive us on purpose. Standard library only and no imports of ours, because every part pays for
this start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Ask the kernel for SIGKILL at the parent's end, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - an argument vector, no shell


if __name__ == "__main__":
    main()

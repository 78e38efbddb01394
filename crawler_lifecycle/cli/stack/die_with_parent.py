"""Run a command that dies with its parent: ``python -I -S die_with_parent.py PARENT_PID COMMAND
[ARGUMENT…]``.

``crawlctl dev`` starts its parts this way. If ``dev`` is killed with SIGKILL, it cannot end its
parts, and an orphaned gateway would keep port 8500. Crawls are not started this way, because they
must outlive ``dev``. This module imports only the standard library, because it runs at the start of
every part, which must be fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Request that this process gets SIGKILL when its parent ends, then replace this process with
    the command.
    """
    parent = int(sys.argv[1])
    command = sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent had died before the call above
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()

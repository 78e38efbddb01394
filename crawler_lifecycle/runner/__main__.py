"""Entry point of ``python -m crawler_lifecycle.runner …``.

Where the package is not installed, use ``python path/to/runner …``.
"""

from __future__ import annotations

import os
import signal
import sys

# Block signals before the other imports. Process 1 of a container has no default action for
# signals, so a SIGTERM during our imports would have no effect. A blocked signal waits until we
# read it.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD))

if not __package__:
    # Python was started with the folder, not the package. Make the folder itself the package,
    # whatever its name.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(here)
    __package__ = os.path.basename(here)

from .main import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])

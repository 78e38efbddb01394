"""``python -m crawler_lifecycle.runner …``, and ``python path/to/runner …`` where the package is not installed."""

from __future__ import annotations

import os
import sys

if not __package__:
    # Started as a bare folder: make the folder itself the package, under whatever name it was mounted.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(here)
    __package__ = os.path.basename(here)

from .main import main

if __name__ == "__main__":
    main(sys.argv[1:])

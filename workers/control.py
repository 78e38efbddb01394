"""A worker for stops: everything from the wish that a run ends to the proof that nothing of it
runs.

``python -m workers.control``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "control", *sys.argv[1:]])

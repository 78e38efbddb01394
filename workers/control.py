"""A worker for stops: everything from the request for a stop to the proof that nothing of the run
executes.

``python -m workers.control``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "control", *sys.argv[1:]])

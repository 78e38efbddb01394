"""A worker for everything: every role in one process, each with threads and connections of its own.

``python -m workers.all``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", *sys.argv[1:]])

"""A worker for everything: all roles in one process, each with its own threads and connections.

``python -m workers.all``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", *sys.argv[1:]])

"""A worker for workflows and the short steps next to them: database, events, notifications.

``python -m workers.workflows``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "workflows", *sys.argv[1:]])

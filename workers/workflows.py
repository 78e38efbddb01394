"""A worker for workflows and their short activities: database, events and notifications.

``python -m workers.workflows``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "workflows", *sys.argv[1:]])

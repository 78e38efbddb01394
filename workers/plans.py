"""A worker for the classes of crawl managers: each has a process of its own beside it.

``python -m workers.plans``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "plans", *sys.argv[1:]])

"""A worker for classes of crawl managers, each of which executes in its own process.

``python -m workers.user-code``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "user-code", *sys.argv[1:]])

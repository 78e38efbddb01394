"""A worker for everything that a slow cluster may delay: deployments and polls.

``python -m workers.cluster``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "cluster", *sys.argv[1:]])

"""A worker without a queue, which notices changes on the cluster and wakes the affected runs.

``python -m workers.observer``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "observer", *sys.argv[1:]])

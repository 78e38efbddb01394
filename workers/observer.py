"""A worker that serves no queue: it notices changes on the cluster and wakes the runs concerned.

``python -m workers.observer``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "observer", *sys.argv[1:]])

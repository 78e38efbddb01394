"""A worker for audits, which compare the database, the cluster and Temporal.

``python -m workers.audit``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "audit", *sys.argv[1:]])

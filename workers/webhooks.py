"""A worker for webhooks, the only worker that calls addresses that users name.

``python -m workers.webhooks``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "webhooks", *sys.argv[1:]])

"""A worker for supporting files, which it packs and uploads.

``python -m workers.export``; see ``crawler_lifecycle.worker.process``.
"""

import sys

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main(["worker", "export", *sys.argv[1:]])

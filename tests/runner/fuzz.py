"""Plays many random feeds and projects, and prints differences: ``python -m tests.runner.fuzz COUNT
SEED``.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from tests.runner import random_feeds, random_projects
from tests.runner.surfaces import Surfaces

#: Of this number of cases, two use HTTP, which takes twice as long.
EACH_BY_HTTP = 100


def main() -> None:
    """Play this number of cases, alternating between feeds and projects with a feed."""
    count, first = (
        int(sys.argv[1]),
        int(sys.argv[2]) if len(sys.argv) > 2 else random.Random().randrange(2**32),
    )
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        surfaces, project = Surfaces(Path(folder)), Path(folder) / "project"
        project.mkdir()
        with surfaces.by_http() as http:
            for seed in range(first, first + count):
                asked = http if seed % EACH_BY_HTTP < 2 else None
                if seed % 2:
                    differs = random_projects.difference(
                        random_projects.project(seed), surfaces, project, asked
                    )
                else:
                    differs = random_feeds.difference(seed, surfaces, asked)
                if differs:
                    wrong += 1
                    print(f"{seed}: {differs}"[:500], flush=True)
    print(f"{count:,} feeds and projects from seed {first} on, {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

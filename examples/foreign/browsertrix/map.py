#!/usr/bin/env python3
"""The command line of browsertrix-crawler as a task: ``map.py crawl [options]``. It uses only the
standard library.

It adds options for the start of the crawl, its folder, and the state from which it continues. It
reports the counters of ``--statsFilename``, keeps the WACZ file, and translates one exit code. It
passes on only the first stop signal, because a second signal would cut off the crawl.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

#: A full disk has one exit code in the service, and two in browsertrix. All other codes have the
#: same meaning, or are ordinary failures.
CODES = {16: 3}
COLLECTION = "crawl"


def command(words: list[str], state: Path) -> tuple[list[str], bool]:
    """Return the command line of browsertrix, and whether the crawl continues from a saved state."""
    arguments = json.loads(os.environ.get("CRAWL_ARGS", "{}"))
    where = [
        "--cwd",
        str(state),
        "--collection",
        COLLECTION,
        "--statsFilename",
        str(state / "stats.json"),
    ]
    saved = sorted(
        (state / "collections" / COLLECTION / "crawls").glob("*.yaml"), key=os.path.getmtime
    )
    resumed = os.environ.get("CRAWL_RESUME") == "1" and bool(saved)
    if not resumed:
        shutil.rmtree(state / "collections", ignore_errors=True)
    # A saved state contains no options, so all options are given again. By default, the state is
    # saved only at a stop, and not after a kill.
    going_on = ["--config", str(saved[-1])] if resumed else []
    keeping = ["--saveState", "always", "--saveStateInterval", "10", "--generateWACZ"]
    given = shlex.split(arguments.get("options", ""))
    return [*words, "--url", arguments["site"], *going_on, *where, *keeping, *given], resumed


def tell(state: Path, resumed: bool) -> None:
    """Write the counters in the format of the contract. The source file may be incomplete. The next
    poll then reads the rest.
    """
    try:
        found = json.loads((state / "stats.json").read_text())
        counters = {"pages": found["crawled"], "errors": found["failed"], "resumed": resumed}
    except (OSError, ValueError, KeyError, TypeError):
        return
    target = Path(os.environ["CRAWL_STATS_FILE"])
    unfinished = target.with_name(f"{target.name}.tmp")
    unfinished.write_text(json.dumps(counters))
    unfinished.replace(target)


def listen() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def main() -> int:
    state, files = Path(os.environ["CRAWL_STATE_DIR"]), Path(os.environ["CRAWL_FILES_DIR"])
    words, resumed = command(sys.argv[1:], state)
    (state / "stats.json").unlink(missing_ok=True)
    # A stop that comes before the crawler process has started must not be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # The original program reads the variable CRAWL_ARGS as options of its own, but in this service
    # it contains JSON.
    env = {name: value for name, value in os.environ.items() if name != "CRAWL_ARGS"}
    crawl = subprocess.Popen(words, env=env, preexec_fn=listen)
    signal.signal(signal.SIGTERM, lambda *_: crawl.send_signal(signal.SIGTERM))
    listen()
    while True:
        try:
            code = crawl.wait(timeout=1)
            break
        except subprocess.TimeoutExpired:
            tell(state, resumed)
    tell(state, resumed)
    kept = state / "collections" / COLLECTION
    for file in kept.glob("*.wacz"):
        shutil.copy2(file, files)
    if (kept / "pages").exists():  # A folder with this name is not counted as items.
        shutil.copytree(kept / "pages", files / "pages", dirs_exist_ok=True)
    if (
        code < 0
    ):  # A signal ended the crawler, so this process ends by the same signal, which is then reported.
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return CODES.get(code, code)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The command line of browsertrix-crawler as a task: ``map.py crawl [options]``, standard library
only.

It adds where the crawl starts, where it lies and what it continues from, reports the counters of
``--statsFilename``, keeps the WACZ, and gives one of its exit codes another number. The stop signal
is passed on once: a second one would cut the crawl off.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

#: A full disk is one code for the service, and two for browsertrix. All others mean the same, or
#: just a failure.
CODES = {16: 3}
COLLECTION = "crawl"


def command(words: list[str], state: Path) -> tuple[list[str], bool]:
    """Return its command line, and whether the crawl continues from a saved state."""
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
    # A saved state has no options, so they are all given again. By default it is saved at a stop
    # only, not for a kill.
    going_on = ["--config", str(saved[-1])] if resumed else []
    keeping = ["--saveState", "always", "--saveStateInterval", "10", "--generateWACZ"]
    given = shlex.split(arguments.get("options", ""))
    return [*words, "--url", arguments["site"], *going_on, *where, *keeping, *given], resumed


def tell(state: Path, resumed: bool) -> None:
    """Write its counters in our words. Its file may be half-written; the next poll has the rest."""
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
    # A stop that comes before there is anything to pass it to must not be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # The original takes the words of a variable CRAWL_ARGS for options of its own; ours holds JSON.
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
    if (kept / "pages").exists():  # a folder of this name is not counted as items
        shutil.copytree(kept / "pages", files / "pages", dirs_exist_ok=True)
    if code < 0:  # a signal ended it: die of the same one, so that it is reported
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return CODES.get(code, code)


if __name__ == "__main__":
    sys.exit(main())

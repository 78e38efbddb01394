"""The time that people wait for the command line: help, and every kind of verb up to its first
request.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.sizes import size

REPETITIONS = size(9, 2)
BUDGET_S = 0.4

#: The measured calls of the program, in the order of a person's day.
HELP: dict[str, tuple[str, ...]] = {
    "crawlctl --help": ("--help",),
    "crawlctl tasks add --help": ("tasks", "add", "--help"),
    "crawlctl version": ("version",),
}
REQUESTS: dict[str, tuple[str, ...]] = {
    "crawlctl list": ("list",),
    "crawlctl start": ("start", "services"),
    "crawlctl watch": ("watch", "1"),
    "crawlctl tasks add": ("tasks", "add", "1", "-a", "a=b"),
    "crawlctl logs -f": ("logs", "1", "-f"),
    "crawlctl export": ("export", "1"),
}
BASELINES: dict[str, tuple[str, ...]] = {
    "python -c pass": ("-c", "pass"),
    "python -c 'import httpx'": ("-c", "import httpx"),
}
CRAWLCTL = ("-m", "crawler_lifecycle.cli")


def _until_end(words: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return time.perf_counter() - begun


def _until_request(words: Sequence[str]) -> float:
    """Return the seconds until the gateway has the first bytes of a request."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        begun = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, *CRAWLCTL, "--gateway", url, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(20)
                assert connection.recv(1), "a request came"
                seconds = time.perf_counter() - begun
            process.kill()
    return seconds


async def main() -> None:
    """Measure everything in turn, several times, so that a busy moment affects all alike. Print
    medians.
    """
    cases: dict[str, Callable[[], float]] = {}
    for name, words in BASELINES.items():
        cases[name] = lambda words=words: _until_end(words)  # type: ignore[misc]
    for name, words in HELP.items():
        cases[name] = lambda words=words: _until_end((*CRAWLCTL, *words))  # type: ignore[misc]
    for name, words in REQUESTS.items():
        cases[(f"{name} up to its request")] = lambda words=words: _until_request(words)  # type: ignore[misc]
    for case in cases.values():
        case()  # files into the cache
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPETITIONS):
        for name, case in cases.items():
            seconds[name].append(case())
    baseline = statistics.median(seconds["python -c pass"])
    for name, values in seconds.items():
        median = statistics.median(values)
        verdict = (
            ""
            if name in BASELINES
            else f"   {'within' if median <= BUDGET_S else 'OVER'} {BUDGET_S:g} s"
        )
        print(
            f"{name:45} {median * 1000:6.0f} ms   {median / baseline:5.1f} x python -c "
            f"pass{verdict}"
        )

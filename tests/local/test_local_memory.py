"""The memory limit of a task, with crawlers that really allocate."""

from __future__ import annotations

import pytest
from local_bench import Bench

from crawler_lifecycle.domain.task import Phase, read_end

GROW = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * 2**22)); time.sleep(0.02)\n"
#: Two children, each under the limit, together over it.
FAMILY = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        held = bytearray(b"x" * (60 * 2**20))
        time.sleep(60)
time.sleep(60)
"""
#: Forked children share what the parent holds: that counts once.
SHARED = """
import os, time
held = bytearray(b"x" * (60 * 2**20))
for _ in range(3):
    if os.fork() == 0:
        time.sleep(1.5)
        os._exit(0)
time.sleep(1.5)
"""
FAST = "held = bytearray(b'x' * (90 * 2**20))\nraise SystemExit(1)\n"


@pytest.mark.parametrize("code", [GROW, FAMILY, FAST], ids=["grows", "family", "fails at the limit"])
def test_over_the_limit_is_out_of_memory(bench: Bench, code: str) -> None:
    bench.deploy(code, memory="80Mi")
    seen = bench.until(Phase.ENDED)
    assert seen.end is not None
    assert seen.end.reason == "OOMKilled"
    assert seen.end.memory_limit == "80Mi"
    assert seen.peak_memory is not None
    assert seen.peak_memory >= 80 * 2**20
    assert (seen.end.exit_code, seen.end.signal) in ((137, 9), (1, None))
    assert read_end(seen.end).outcome == "killed by oom"
    assert read_end(seen.end).cause.startswith("Out of memory (limit 80Mi), ")


def test_shared_pages_count_once(bench: Bench) -> None:
    bench.deploy(SHARED, memory="110Mi")
    seen = bench.until(Phase.ENDED)
    assert seen.end is not None
    assert seen.end.reason == "Completed"


def test_more_than_can_ever_be_had_is_refused_by_the_kernel(bench: Bench) -> None:
    bench.deploy("held = bytearray(2**33)", memory="80Mi")
    seen = bench.until(Phase.ENDED)
    assert seen.end is not None
    assert (seen.end.exit_code, seen.end.reason) == (1, "Error")
    [details] = bench.cluster.details(5, [bench.ref()])
    assert "MemoryError" in (details.log_tail or "")

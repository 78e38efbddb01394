"""How many workflows a worker remembers: by the memory that it may take for them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from crawler_lifecycle.settings import WorkerSettings


@pytest.mark.parametrize(("memory", "runs"), [("256Mi", 1310), ("2Gi", 10485), ("1Mi", 5)])
def test_the_memory_is_a_number_of_runs(memory: str, runs: int) -> None:
    assert WorkerSettings(cache=memory).cached() == runs


@pytest.mark.parametrize("memory", ["much", "0", "1Ki", "1e30", ""])
def test_memory_that_cannot_be_is_refused_by_its_name(memory: str) -> None:
    with pytest.raises(ValidationError, match=r"cache\n.*(not allowed|give)"):
        WorkerSettings(cache=memory)

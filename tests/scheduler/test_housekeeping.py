"""The scheduler service's own work: old runs are removed, and no error ends it."""

from __future__ import annotations

import logging
import threading

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.scheduler import serve


class Cluster:
    """Gives the next of its answers for each call, then nothing removed."""

    def __init__(self, *answers: list[int] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []
        self.thrice = threading.Event()

    def remove_old(self, keep_s: float) -> list[int]:
        self.asked.append(keep_s)
        if len(self.asked) == 3:
            self.thrice.set()
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_was_removed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster([*range(1, 31)], [])
    for _ in range(2):
        serve.clean(cluster, 14)
    assert cluster.asked == [14 * 86_400.0] * 2
    [said] = caplog.messages
    assert said.startswith(
        "removed the files of 30 runs that ended more than 14 days ago: 1, 2, 3,"
    )
    assert said.endswith("20, …")


def test_it_goes_on_after_failures(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "RETRY_S", (0.01, 0.01))
    cluster = Cluster(ClusterUnavailable("no disk"), ValueError("a flaw of ours"))
    done = serve.start_cleaning(cluster, 1, first_s=0, every_s=0.01)
    assert done is not None
    assert cluster.thrice.wait(60)
    done.set()
    assert "the removal of old runs failed and is retried: no disk" in caplog.text


def test_for_ever_is_for_ever() -> None:
    assert serve.start_cleaning(Cluster(), 0, first_s=0, every_s=0.01) is None

"""Crawlers that attack their supervisor and runner: no ended task keeps a slot."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.clusters.local.folders.reader import TaskFolder
from crawler_lifecycle.clusters.local.processes.identity import Identity, read_stat
from crawler_lifecycle.domain.task import Phase
from tests.clusters.local.local_fixture import ESCAPED, RUN, Fixture, wait_until
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

WATCHERS = """
import json, os, signal, time
runner = os.getppid()
supervisor = int(open(f"/proc/{runner}/stat").read().rsplit(")", 1)[1].split()[1])
home = os.path.dirname(os.environ["CRAWL_FILES_DIR"])
"""
STOPS_SUPERVISOR = WATCHERS + "os.kill(supervisor, signal.SIGSTOP)\n"
GARBAGE = "open(home + '/supervisor.json', 'w').close()\n"


def stopped(one: Identity) -> bool:
    stat = read_stat(one.pid)
    return stat is not None and stat.state == "T"


@pytest.mark.parametrize(
    "code", [STOPS_SUPERVISOR, STOPS_SUPERVISOR + GARBAGE], ids=["stopped", "and hidden"]
)
def test_four_crawlers_that_stop_their_supervisors_keep_no_slot(
    make_fixture: Callable[..., Fixture], code: str
) -> None:
    fixture = make_fixture(slots=4)
    fixture.deploy(code, range(4))
    for index in range(4):
        wait_until((fixture.folder(index) / "summary.json").exists)
    fixture.deploy("pass", range(4, 5))
    assert fixture.until(Phase.ENDED, 4).started_at is not None
    for index in range(4):
        wait_until((fixture.folder(index) / "end.json").exists)
        seen = fixture.poll(index)
        assert (seen.end.exit_code, seen.end.finish_reason) == (0, "finished")


def test_the_audit_frees_the_slot_of_a_run_that_nobody_polls_at(
    make_fixture: Callable[..., Fixture],
) -> None:
    fixture = make_fixture(slots=1)
    fixture.deploy(STOPS_SUPERVISOR)
    wait_until((fixture.folder() / "summary.json").exists)
    wait_until(lambda: stopped(fixture.supervisor()))
    fixture.cluster.inventory()
    fixture.until_on_file()


def test_the_audit_ends_a_supervisor_that_hangs(make_fixture: Callable[..., Fixture]) -> None:
    """A process of the same user may close all its files: it cannot write an end, and nobody can
    repair this.
    """
    ahead = timedelta(0)
    fixture = make_fixture(slots=1, clock=lambda: datetime.now(UTC) + ahead)
    fixture.start(
        "import os, time\nopen(os.environ['CRAWL_FILES_DIR'] + '/ready', 'w').close()\ntime.sleep(1)\n"
    )
    supervisor = fixture.supervisor()
    resource.prlimit(supervisor.pid, resource.RLIMIT_FSIZE, (0, 0))
    fixture.until(Phase.ENDED)
    fixture.cluster.inventory()
    assert supervisor.alive(), "it may still write the end"
    ahead = timedelta(seconds=61)
    fixture.cluster.inventory()
    wait_until(lambda: not supervisor.alive())
    seen = fixture.poll()
    assert (seen.end.exit_code, seen.end.finish_reason) == (0, "finished")


def test_who_waits_behind_a_stopped_supervisor_gets_its_turn(
    make_fixture: Callable[..., Fixture],
) -> None:
    fixture = make_fixture(slots=1)
    fixture.fill(1)
    fixture.queue(1)
    fixture.queue(2, "pass")
    fixture.supervisor(1).send(signal.SIGSTOP)
    wait_until(lambda: stopped(fixture.supervisor(1)))
    fixture.cluster.kill(run_ref(RUN), fixture.ref(0))
    fixture.until(Phase.EXECUTING, 1)
    fixture.cluster.kill(run_ref(RUN), fixture.ref(1))
    fixture.until(Phase.ENDED, 2)


@pytest.mark.parametrize(
    "before", ["", "os.kill(supervisor, signal.SIGKILL)\n"], ids=["supervised", "alone"]
)
def test_a_stopped_runner_tells_the_end_of_its_crawler(fixture: Fixture, before: str) -> None:
    fixture.deploy(WATCHERS + before + "os.kill(runner, signal.SIGSTOP)\n")
    seen = fixture.until(Phase.ENDED)
    assert (seen.end.exit_code, seen.end.finish_reason) == (0, "finished")


@pytest.mark.parametrize("hidden", ["", GARBAGE, "os.unlink(home + '/supervisor.json')\n"])
def test_a_stop_reaches_a_crawler_whose_supervisor_is_stopped(
    fixture: Fixture, hidden: str
) -> None:
    fixture.start(
        WATCHERS
        + "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
        + "os.kill(supervisor, signal.SIGSTOP)\n"
        + hidden
        + "open(home + '/files/ready', 'w').close()\ntime.sleep(300)\n"
    )
    fixture.cluster.stop(run_ref(RUN), fixture.ref())
    seen = fixture.until(Phase.ENDED)
    assert seen.end.finish_reason == "shutdown"


FORGED_END = (
    "open(home + '/end.json', 'w').write(json.dumps({'exit_code': 0, 'reason': 'Completed'}))\n"
)


@pytest.mark.parametrize("lie", [GARBAGE, FORGED_END], ids=["hidden", "forged end"])
def test_a_kill_ends_a_supervisor_that_is_stopped_again_and_again(
    fixture: Fixture, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.start(WATCHERS + lie + "open(home + '/files/ready', 'w').close()\ntime.sleep(300)\n")
    [supervisor], _ = TaskFolder(fixture.cluster._state, run_ref(RUN), fixture.ref()).named()
    really = Identity.send

    def send(self: Identity, number: int) -> bool:
        """Somebody stops the process just after every signal to it."""
        return really(self, number) and (
            self != supervisor or number == signal.SIGKILL or really(self, signal.SIGSTOP)
        )

    monkeypatch.setattr(Identity, "send", send)
    supervisor.send(signal.SIGCONT)
    fixture.cluster.kill(run_ref(RUN), fixture.ref())
    assert not supervisor.alive()


def test_what_hides_from_us_holds_no_slot(make_fixture: Callable[..., Fixture]) -> None:
    """A daemon without a trace, whose crawler killed its supervisor and runner, belongs to nobody,
    and blocks nobody.
    """
    fixture = make_fixture(slots=1)
    killer = (
        ESCAPED
        + WATCHERS
        + "os.kill(supervisor, signal.SIGKILL)\nos.kill(runner, signal.SIGKILL)\n"
    )
    (fixture.state / "tasks").mkdir(exist_ok=True)
    fixture.deploy(killer)
    wait_until((fixture.folder() / "files/daemon").exists)
    daemon = Identity.of(int((fixture.folder() / "files/daemon").read_text()))
    try:
        fixture.deploy("pass", range(1, 2))
        fixture.until(Phase.ENDED, 1)
        assert daemon.alive()
    finally:
        daemon.send(signal.SIGKILL)


def test_a_crawler_is_given_no_file_of_ours(fixture: Fixture) -> None:
    fixture.deploy(
        "import os\nprint([os.path.realpath(f'/proc/self/fd/{n}') for n in range(3, 50)], os.environ)\n"
    )
    fixture.until_on_file()
    log = (fixture.folder() / "log").read_text()
    assert str(fixture.state / "slots") not in log
    assert "CRAWL_SLOT_FD" not in log
    assert "CRAWL_FILES_DIR" in log

"""The runner as in a pod: process 1, a termination log that cannot be replaced, and hardly a
writable folder.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.runner import contract
from crawler_lifecycle.runner.memory import cgroup_limit
from tests.runner.runner_fixture import RUNNER, RunnerFixture, wait_until

#: Its own process namespace, like every container.
AS_PROCESS_1 = (
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount",
    "--mount-proc",
)


@pytest.fixture
def process_1(fixture: RunnerFixture) -> list[str]:
    tried = subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(
            f"no process namespace can be made here ({tried.stderr.strip()}); the real node proves the same"
        )
    return [
        *AS_PROCESS_1,
        sys.executable,
        "-I",
        "-S",
        str(RUNNER),
        "command",
        "--",
        sys.executable,
        "-I",
        "-S",
        "-c",
    ]


def _start(
    fixture: RunnerFixture, argv: list[str], code: str, **more: str
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*argv, code],
        env=fixture.environment({}, more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    fixture._started.append(process)
    return process


def _inner(process: subprocess.Popen[bytes]) -> int:
    """Return the runner as seen from outside its namespace."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: children.read_text().split())
    return int(children.read_text().split()[0])


COUNT_STOPS = """
import os, signal, sys, time
folder = os.environ["CRAWL_FILES_DIR"]
def stop(*_):
    with open(folder + "/stops", "a") as file: file.write("x")
    while not os.path.exists(folder + "/go"): time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
with open(folder + "/ready", "w") as file: file.write(str(os.getppid()))
while True: time.sleep(0.1)
"""


def test_as_process_1_a_stop_reaches_the_crawler_once(
    fixture: RunnerFixture, process_1: list[str]
) -> None:
    process = _start(fixture, process_1, COUNT_STOPS)
    wait_until((fixture.files / "ready").exists)
    # The crawler's parent is process 1.
    wait_until(lambda: (fixture.files / "ready").read_text() == "1")
    for _ in range(5):
        os.kill(_inner(process), signal.SIGTERM)
        time.sleep(0.02)
    (fixture.files / "go").touch()
    assert fixture.finish(process) == 11
    assert (fixture.files / "stops").read_text() == "x"
    assert fixture.summary()["finish_reason"] == "shutdown"


def test_a_stop_before_anything_was_imported_is_not_lost(
    fixture: RunnerFixture, process_1: list[str]
) -> None:
    (fixture.files / "go").touch()
    process = _start(fixture, process_1, COUNT_STOPS)
    inner = _inner(process)
    blocked = 0
    deadline = time.monotonic() + 150
    while not blocked & (1 << (signal.SIGCHLD - 1)):
        # From the moment when it waits for us, which is before its own modules are loaded. (Unshare
        # itself blocks SIGTERM for a moment, but not SIGCHLD.)
        assert time.monotonic() < deadline, "not within 150 s"
        status = Path(f"/proc/{inner}/status").read_text()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    os.kill(inner, signal.SIGTERM)
    code = fixture.finish(process)
    # If we were late, it was passed on to a crawler that may not have had its handler yet.
    assert code == 11 or (code, fixture.summary()["signal"]) == (13, signal.SIGTERM)
    assert not (fixture.files / "ready").exists() or (fixture.files / "stops").exists()


def test_what_the_crawler_left_running_does_not_write_into_files_that_are_taken(
    fixture: RunnerFixture, process_1: list[str]
) -> None:
    code = """
import os, subprocess, sys
writer = "import os,time\\nwhile 1: open(os.environ['CRAWL_FILES_DIR']+'/late', 'a').write('x'); time.sleep(0.01)"
subprocess.Popen([sys.executable, "-c", writer], start_new_session=True)
"""
    nowhere = {"CRAWL_UPLOAD_URL": "nonsense", "CRAWL_UPLOAD_TOKEN": "t"}
    process = _start(fixture, process_1, code, **nowhere)
    assert fixture.finish(process) == 0
    assert fixture.summary()["files"]["uploaded"] is False


def test_a_termination_log_is_written_into_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mounted(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    log = tmp_path / "folder" / "termination-log"
    log.parent.mkdir()
    log.write_text("x" * 3000)
    before = log.stat().st_ino
    monkeypatch.setattr(os, "replace", mounted)  # it is a file that the kubelet mounted
    contract.write(str(log), '{"exit": 0}')
    assert log.read_text() == '{"exit": 0}'
    assert log.stat().st_ino == before


@given(st.text(max_size=1000), st.text(max_size=200), st.text(max_size=200))
def test_whatever_a_crawler_says_the_summary_fits_into_a_termination_message(
    message: str, reason: str, note: str
) -> None:
    summary: contract.Json = {
        "runner": "1",
        "message": message,
        "finish_reason": reason,
        "resume_note": note,
        "files": {"uploaded": False, "why": "w" * 300},
        **dict.fromkeys(contract.COUNTERS, 2**63 - 1),
    }
    text = contract.summary_text(summary)
    assert len(text.encode()) <= contract.SUMMARY_MAX
    assert text.index('"files": ') <= contract.SHORT_MAX
    assert text.index('"files": ') < text.index('"message": ')
    told = json.loads(text)
    assert message.startswith(told["message"])
    assert told["files"] == summary["files"]
    short = {name: value for name, value in summary.items() if name not in ("files", "message")}
    if (
        len(json.dumps(summary)) <= contract.SUMMARY_MAX
        and len(json.dumps(short)) <= contract.SHORT_MAX
    ):
        assert told == summary


def test_what_decides_stands_first_in_the_summary(fixture: RunnerFixture) -> None:
    """A kubelet keeps as little as a KiB of it, from the beginning."""
    code = """
import json, os
open(os.environ["CRAWL_STATS_FILE"], "w").write(json.dumps({"message": "m" * 1000, "pages": 7}))
"""
    assert fixture.python(code) == 0
    raw = fixture.summary_file.read_text()
    assert list(json.loads(raw))[:4] == ["runner", "exit", "finish_reason", "finished_at"]
    assert 0 < raw.index('"pages": 7') < raw.index('"message": ') < contract.SHORT_MAX


def test_without_a_stats_file_counters_are_printed_all_the_same(
    fixture: RunnerFixture, tmp_path: Path
) -> None:
    code = "import os; open(os.environ['CRAWL_STATS_FILE'], 'w').write('{\"pages\": 3}')"
    environment = fixture.environment({}, {})
    del environment["CRAWL_STATS_FILE"]
    nowhere = {"TMPDIR": str(tmp_path / "none"), "TMP": "", "TEMP": ""}
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(RUNNER),
        "command",
        "--",
        sys.executable,
        "-I",
        "-S",
        "-c",
        code,
    ]
    told = subprocess.run(
        argv, env={**environment, **nowhere}, capture_output=True, text=True, timeout=120
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout.splitlines()[-1])["crawl_progress"]["pages"] == 3
    assert fixture.summary()["pages"] == 3


# --- the limit of memory that nobody told ---------------------------------------------------------


def _cgroups(tmp_path: Path, own: str, **files: str) -> tuple[str, str]:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(own)
    for name, text in files.items():
        path = (
            tmp_path
            / "fs"
            / name.replace("__", "/").replace("_limit", ".limit_in_bytes").replace("_max", ".max")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path / "proc"), str(tmp_path / "fs")


MIB = 2**20


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        # Version 2 with its own namespace, and without limits.
        ("0::/\n", {"memory_max": str(64 * MIB)}, 64 * MIB),
        ("0::/\n", {"memory_max": "max"}, None),
        # Below other groups, the smallest limit counts.
        (
            "0::/pods/a\n",
            {"memory_max": "max", "pods__memory_max": str(32 * MIB), "pods__a__memory_max": "max"},
            32 * MIB,
        ),
        # Version 1; its own path is the host's, and the mount is the group here.
        (
            "7:memory:/kubepods/pod1/c1\n0::/x\n",
            {"memory__memory_limit": str(128 * MIB)},
            128 * MIB,
        ),
        (
            "7:memory:/a\n",
            {
                "memory__memory_limit": str(2**63 - 4096),
                "memory__a__memory_limit": str(2**63 - 4096),
            },
            None,
        ),
        (
            "7:cpu,memory:/a\n",
            {"memory__a__memory_limit": str(16 * MIB), "memory__memory_limit": str(2**63)},
            16 * MIB,
        ),
        # Nothing readable.
        ("", {}, None),
        ("nonsense\n0::/../../..\n", {"memory_max": "many"}, None),
    ],
)
def test_the_control_groups_limit(
    tmp_path: Path, own: str, files: dict[str, str], limit: int | None
) -> None:
    proc, root = _cgroups(tmp_path, own, **files)
    assert cgroup_limit(proc, root) == limit


def test_a_limit_above_what_the_machine_has_is_none(tmp_path: Path) -> None:
    proc, root = _cgroups(tmp_path, "0::/\n", memory_max=str(2**50))
    assert cgroup_limit(proc, root) is None
    assert cgroup_limit(str(tmp_path / "nowhere"), root) is None

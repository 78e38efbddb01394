"""Where control groups are found and what is written into them, with folders in place of the
kernel's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.processes import cgroup
from crawler_lifecycle.clusters.local.processes.cgroup import Group, Parent, Unavailable

#: What the kernel writes into every new group.
NEW = {"cgroup.procs": "", "memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0"}
NEW |= {"cgroup.controllers": "", "memory.events": "low 0\noom 3\noom_kill 0\n", "memory.peak": "0"}
NEW |= {"cgroup.kill": "", "cpu.max": "max 100000"}


class Kernel:
    """Folders that fill and clear groups as the kernel does."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "sys"
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.refused: set[str] = set()
        self._mkdir, self._rmdir, self._write = os.mkdir, os.rmdir, cgroup._write

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        if str(path) in self.refused:
            raise PermissionError(13, "Permission denied", path)
        self._mkdir(path, mode)
        for name, text in NEW.items():
            Path(path, name).write_text(text)

    def rmdir(self, path: str) -> None:
        if Path(path, "cgroup.procs").exists() and Path(path, "cgroup.procs").read_text().strip():
            raise OSError(16, "Device or resource busy", path)
        for name in NEW:
            Path(path, name).unlink(missing_ok=True)
        self._rmdir(path)

    def write(self, folder: str, name: str, text: str) -> None:
        if f"{folder}/{name}" in self.refused:
            raise OSError(16, "Device or resource busy", f"{folder}/{name}")
        if name == "cgroup.subtree_control":
            before = Path(folder, name).read_text().split()
            text = " ".join([*before, text.removeprefix("+")])
        if Path(folder, name).exists():
            Path(folder, name).write_text("")  # each write sets a value, whatever was there
        self._write(folder, name, text)
        if name == "cgroup.procs":
            Path(folder, name).write_text("")  # the process for the experiment ends in a moment

    def group(self, path: str, **files: str) -> Path:
        folder = self.root / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return folder

    def own(self, lines: str, mounts: str) -> None:
        (self.proc / "cgroup").write_text(lines)
        (self.proc / "mountinfo").write_text(mounts)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(tmp_path)
    monkeypatch.setattr(os, "mkdir", made.mkdir)
    monkeypatch.setattr(os, "rmdir", made.rmdir)
    monkeypatch.setattr(cgroup, "_write", made.write)
    monkeypatch.setattr(
        cgroup, "_marked_delegated", lambda folder: Path(folder, "delegated").exists()
    )
    return made


def unified(kernel: Kernel, own: str) -> None:
    kernel.own(
        f"0::{own}\n",
        f"31 23 0:28 / {kernel.root} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    )


ALL = {"cgroup__controllers": "cpu io memory pids", "cgroup__procs": "17"}
FREE = {"memory__max": "max", "memory__high": "max", "cpu__max": "max 100000"}


def test_it_takes_the_delegated_group_above_ours(kernel: Kernel) -> None:
    unified(kernel, "/service/leaf")
    service = kernel.group(
        "service", cgroup__controllers="cpu memory", cgroup__subtree_control="", cgroup__procs=""
    )
    kernel.group("service", delegated="")
    kernel.group("service/leaf", **ALL, **FREE, cgroup__subtree_control="")
    found = cgroup.find("auto", str(kernel.proc))
    assert found == Parent(str(service), cpu=True)
    assert (service / "cgroup.subtree_control").read_text().split() == ["memory", "cpu"]
    assert [entry.name for entry in service.iterdir() if entry.is_dir()] == ["leaf"], (
        "the probe was left behind"
    )


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (
            {"memory__max": "1073741824"},
            "has its own limit (memory.max), which must also apply to tasks",
        ),
        (
            {"cpu__max": "50000 100000"},
            "has its own limit (cpu.max), which must also apply to tasks",
        ),
        ({}, "was not delegated to us"),
    ],
)
def test_it_never_leaves_a_limit_or_takes_what_was_not_given(
    kernel: Kernel, leaf: dict[str, str], words: str
) -> None:
    unified(kernel, "/service/leaf")
    kernel.group(
        "service",
        cgroup__controllers="cpu memory",
        cgroup__subtree_control="memory",
        cgroup__procs="",
    )
    if leaf:
        kernel.group("service", delegated="")
    kernel.group("service/leaf", **ALL, **(FREE | leaf), cgroup__subtree_control="")
    with pytest.raises(Unavailable) as refused:
        cgroup.find("auto", str(kernel.proc))
    assert words in str(refused.value)


def test_it_without_the_right_to_the_controller(kernel: Kernel) -> None:
    unified(kernel, "/")
    root = kernel.group("", **ALL, cgroup__subtree_control="")
    kernel.refused.add(f"{root}/cgroup.subtree_control")
    with pytest.raises(Unavailable, match=r"subtree_control: Device or resource busy"):
        cgroup.find("auto", str(kernel.proc))


def test_without_limits_of_processors_memory_is_limited_alone(kernel: Kernel) -> None:
    unified(kernel, "/")
    root = kernel.group("", **ALL, cgroup__subtree_control="memory cpu")
    write = kernel.write

    def refuse_cpu(folder: str, name: str, text: str) -> None:
        if name == "cpu.max":
            raise PermissionError(13, "Permission denied", f"{folder}/{name}")
        write(folder, name, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroup, "_write", refuse_cpu)
        assert cgroup.find("auto", str(kernel.proc)) == Parent(str(root), cpu=False)
    assert [entry.name for entry in root.iterdir() if entry.is_dir()] == []


@pytest.mark.parametrize(
    ("lines", "mount"),
    [
        (
            "4:memory:/box/me\n0::/\n",
            "35 31 0:32 /box {root}/memory rw - cgroup cgroup rw,memory\n",
        ),
        ("0::/\n", "41 31 0:38 / {root} rw - cgroup2 cgroup2 rw\n"),
        ("0::/elsewhere\n", "41 31 0:38 /box {root} rw - cgroup2 cgroup2 rw\n"),
    ],
    ids=["version 1", "without the controller", "not to be seen from here"],
)
def test_no_memory_controller_anywhere(kernel: Kernel, lines: str, mount: str) -> None:
    kernel.own(lines, mount.format(root=kernel.root))
    kernel.group("", cgroup__controllers="hugetlb")
    with pytest.raises(
        Unavailable, match="no cgroup of version 2 with a memory controller is mounted"
    ):
        cgroup.find("auto", str(kernel.proc))


def test_a_named_folder(kernel: Kernel, tmp_path: Path) -> None:
    named = kernel.group("named", cgroup__controllers="memory", cgroup__subtree_control="memory")
    kernel.refused.add(f"{named}/cgroup.subtree_control")
    assert cgroup.find(str(named)) == Parent(str(named), cpu=False)
    with pytest.raises(Unavailable, match="is not a cgroup of version 2"):
        cgroup.find(str(tmp_path))
    with pytest.raises(Unavailable, match="the setting is off"):
        cgroup.find("off")


SPEC = {"name": "crawl-7-1-2", "uid": "cdcdcdcd-0000"}


def test_what_the_kernel_is_told_and_asked(kernel: Kernel) -> None:
    parent = kernel.group("parent")
    group = Group.of({"cgroup": str(parent), **SPEC})
    group.make(memory=2**27, cpu=0.001)
    folder = parent / "crawl-7-1-2-cdcdcdcd"
    told = {
        name: (folder / name).read_text()
        for name in ("memory.max", "memory.swap.max", "memory.oom.group")
    }
    assert told == {"memory.max": str(2**27), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert (folder / "cpu.max").read_text() == "1000 100000"  # the kernel's minimum
    assert group.oom_kills() == 0
    (folder / "memory.events").write_text("low 0\noom 9\noom_kill 2\noom_group_kill 1\n")
    (folder / "memory.peak").write_text("134217728\n")
    assert (group.oom_kills(), group.peak()) == (2, 2**27)
    (folder / "cgroup.procs").write_text("123456\n")
    assert (group.pids(), group.remove(0.05)) == ([123456], False)
    group.kill()
    assert (folder / "cgroup.kill").read_text() == "1"
    (folder / "cgroup.procs").write_text("")
    assert group.remove()
    assert not folder.exists()
    assert (group.remove(), group.pids(), group.peak()) == (True, [], None)


@pytest.mark.parametrize(
    "forged",
    [
        {},
        {"cgroup": 7},
        {"cgroup": "here"},
        {"cgroup": "/a", "name": "n"},
        {"cgroup": "/a", "name": "crawl-/b"},
    ],
)
def test_a_spec_that_names_something_else_is_refused(forged: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="names no cgroup of this task"):
        Group.of(SPEC | forged)


def test_a_half_made_group_is_taken_away_again(kernel: Kernel) -> None:
    folder = kernel.group("parent") / "n"
    kernel.refused.add(f"{folder}/cpu.max")
    with pytest.raises(OSError, match="busy"):
        Group(str(folder)).make(memory=1, cpu=1.0)
    assert not folder.exists()


def test_a_real_group_takes_in_and_ends_what_hides() -> None:
    """Without limits, which need a controller: what the kernel does in any version 2 group."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    group = Group(
        os.path.join(
            next((m[1] for m in mounts if m[2] == "cgroup2"), "/nowhere"),
            f"crawl-test-{os.getpid()}",
        )
    )
    try:
        group.make(memory=None, cpu=None)
    except OSError as why:
        pytest.skip(f"no group of version 2 can be made here: {why}")
    hides = "import os, time\nif os.fork():\n  os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(300)"
    waits = f"input()\n{hides}"
    try:
        with subprocess.Popen(
            [sys.executable, "-c", waits], stdin=-1, stdout=-1, env={}, text=True
        ) as process:
            group.admit(process.pid)
            process.stdin.write("go\n")
            process.stdin.flush()
            hidden = int(process.stdout.readline())
            process.wait()
            assert group.pids() == [hidden]
            assert group.remove(0.1) is False
            group.kill()
    finally:
        assert group.remove(60)
    assert group.pids() == []

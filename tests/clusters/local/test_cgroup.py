"""Where control groups are looked for, and what is written into them: over folders that stand in for the kernel's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.processes import cgroup
from crawler_lifecycle.clusters.local.processes.cgroup import Group, Parents, Unavailable

#: What the kernel puts into every new group.
NEW = {
    2: {"cgroup.procs": "", "memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0"}
    | {"memory.events": "low 0\noom 3\noom_kill 0\n", "memory.peak": "0", "cpu.max": "max 100000"},
    1: {"cgroup.procs": "", "memory.limit_in_bytes": "", "memory.max_usage_in_bytes": "", "cpu.cfs_quota_us": ""}
    | {"cpu.cfs_period_us": "", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"},
}


class Kernel:
    """A tree of folders that fills and clears groups as the kernel does."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version = version
        self.root = folder / "sys"
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.refused: set[str] = set()
        self._mkdir, self._rmdir, self._write = os.mkdir, os.rmdir, cgroup._write

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        if str(path) in self.refused:
            raise PermissionError(13, "Permission denied", path)
        self._mkdir(path, mode)
        for name, text in NEW[self.version].items():
            Path(path, name).write_text(text)

    def rmdir(self, path: str) -> None:
        if Path(path, "cgroup.procs").exists() and Path(path, "cgroup.procs").read_text().strip():
            raise OSError(16, "Device or resource busy", path)
        for name in NEW[self.version]:
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
            Path(folder, name).write_text("")  # the process that is tried out is gone in a moment

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
def make_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Kernel]:
    def make(version: int) -> Kernel:
        kernel = Kernel(tmp_path, version)
        monkeypatch.setattr(os, "mkdir", kernel.mkdir)
        monkeypatch.setattr(os, "rmdir", kernel.rmdir)
        monkeypatch.setattr(cgroup, "_write", kernel.write)
        monkeypatch.setattr(cgroup, "_marked_delegated", lambda folder: Path(folder, "delegated").exists())
        return kernel

    return make


def unified(kernel: Kernel, own: str) -> None:
    kernel.own(f"0::{own}\n", f"31 23 0:28 / {kernel.root} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n")


ALL = {"cgroup__controllers": "cpu io memory pids", "cgroup__procs": "17"}
FREE = {"memory__max": "max", "memory__high": "max", "cpu__max": "max 100000"}


def test_version_2_takes_the_delegated_group_above_ours(make_kernel: Callable[[int], Kernel]) -> None:
    kernel = make_kernel(2)
    unified(kernel, "/service/leaf")
    service = kernel.group("service", cgroup__controllers="cpu memory", cgroup__subtree_control="", cgroup__procs="")
    kernel.group("service", delegated="")
    kernel.group("service/leaf", **ALL, **FREE, cgroup__subtree_control="")
    found = cgroup.find("auto", str(kernel.proc))
    assert found.to_json() == {"version": 2, "memory": str(service), "cpu": str(service)}
    assert (service / "cgroup.subtree_control").read_text().split() == ["memory", "cpu"]
    assert [entry.name for entry in service.iterdir() if entry.is_dir()] == ["leaf"], "the probe was left behind"


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        ({"memory__max": "1073741824"}, "has a limit of its own (memory.max), which tasks must not leave"),
        ({"cpu__max": "50000 100000"}, "has a limit of its own (cpu.max), which tasks must not leave"),
        ({}, "was not delegated to us"),
    ],
)
def test_version_2_never_leaves_a_limit_or_takes_what_was_not_given(
    make_kernel: Callable[[int], Kernel], leaf: dict[str, str], words: str
) -> None:
    kernel = make_kernel(2)
    unified(kernel, "/service/leaf")
    kernel.group("service", cgroup__controllers="cpu memory", cgroup__subtree_control="memory", cgroup__procs="")
    if leaf:
        kernel.group("service", delegated="")
    kernel.group("service/leaf", **ALL, **(FREE | leaf), cgroup__subtree_control="")
    with pytest.raises(Unavailable) as refused:
        cgroup.find("auto", str(kernel.proc))
    assert words in str(refused.value)


def test_version_2_without_the_right_to_the_controller(make_kernel: Callable[[int], Kernel]) -> None:
    kernel = make_kernel(2)
    unified(kernel, "/")
    root = kernel.group("", **ALL, cgroup__subtree_control="")
    kernel.refused.add(f"{root}/cgroup.subtree_control")
    with pytest.raises(Unavailable, match=r"subtree_control: Device or resource busy"):
        cgroup.find("auto", str(kernel.proc))


def two_hierarchies(kernel: Kernel) -> tuple[Path, Path]:
    kernel.own(
        "4:memory:/box/me\n3:cpu,cpuacct:/\n0::/\n",
        f"35 31 0:32 /box {kernel.root}/memory rw - cgroup cgroup rw,memory\n"
        f"32 31 0:29 / {kernel.root}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"41 31 0:38 / {kernel.root}/unified rw - cgroup2 cgroup2 rw\n",
    )
    kernel.group("unified", cgroup__controllers="hugetlb")
    return kernel.group("memory/me", cgroup__procs="9"), kernel.group("cpu", cgroup__procs="9")


def test_version_1_takes_a_group_inside_of_ours_in_each_hierarchy(make_kernel: Callable[[int], Kernel]) -> None:
    kernel = make_kernel(1)
    memory, cpu = two_hierarchies(kernel)
    found = cgroup.find("auto", str(kernel.proc))
    assert found.to_json() == {"version": 1, "memory": str(memory), "cpu": str(cpu)}
    group = Group.create(found, "crawl-1-0-1-ab", memory=2**26, cpu=0.5)
    assert (memory / "crawl-1-0-1-ab/memory.limit_in_bytes").read_text() == str(2**26)
    assert (cpu / "crawl-1-0-1-ab/cpu.cfs_quota_us").read_text() == "50000"
    assert group.remove()
    assert not (memory / "crawl-1-0-1-ab").exists()
    assert not (cpu / "crawl-1-0-1-ab").exists()


def test_without_a_writable_cpu_hierarchy_memory_is_limited_alone(
    make_kernel: Callable[[int], Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = make_kernel(1)
    memory, cpu = two_hierarchies(kernel)
    make = kernel.mkdir

    def refuse_cpu(path: str, mode: int = 0o777) -> None:
        if str(path).startswith(str(cpu)):
            raise PermissionError(13, "Permission denied", path)
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", refuse_cpu)
    assert cgroup.find("auto", str(kernel.proc)).to_json() == {"version": 1, "memory": str(memory), "cpu": None}


def test_no_memory_controller_anywhere(make_kernel: Callable[[int], Kernel]) -> None:
    kernel = make_kernel(1)
    kernel.own("0::/\n", f"41 31 0:38 / {kernel.root} rw - cgroup2 cgroup2 rw\n")
    kernel.group("", cgroup__controllers="hugetlb")
    with pytest.raises(Unavailable, match="no cgroup with a memory controller is mounted"):
        cgroup.find("auto", str(kernel.proc))


def test_a_named_folder(make_kernel: Callable[[int], Kernel], tmp_path: Path) -> None:
    kernel = make_kernel(2)
    named = kernel.group("named", cgroup__controllers="memory", cgroup__subtree_control="memory")
    kernel.refused.add(f"{named}/cgroup.subtree_control")
    assert cgroup.find(str(named)).to_json() == {"version": 2, "memory": str(named), "cpu": None}
    with pytest.raises(Unavailable, match="is no cgroup with a memory controller"):
        cgroup.find(str(tmp_path))
    with pytest.raises(Unavailable, match="switched off"):
        cgroup.find("off")


def test_what_version_2_is_told_and_asked(make_kernel: Callable[[int], Kernel]) -> None:
    kernel = make_kernel(2)
    parent = kernel.group("parent")
    group = Group.create(Parents(2, str(parent), str(parent)), "crawl-7-1-2-cd", memory=2**27, cpu=0.001)
    folder = parent / "crawl-7-1-2-cd"
    told = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group")}
    assert told == {"memory.max": str(2**27), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert (folder / "cpu.max").read_text() == "1000 100000"  # the kernel grants no less
    assert group.oom_kills() == 0
    (folder / "memory.events").write_text("low 0\noom 9\noom_kill 2\noom_group_kill 1\n")
    (folder / "memory.peak").write_text("134217728\n")
    assert (group.oom_kills(), group.peak()) == (2, 2**27)
    (folder / "cgroup.procs").write_text("123456\n")
    assert group.remove(0.05) is False
    (folder / "cgroup.procs").write_text("")
    assert Group.from_json(group.to_json(), "crawl-7-1-2-cd").remove()
    assert not folder.exists()
    assert group.remove()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 3, "folders": ["/a/n"]},
        {"version": 2, "folders": []},
        {"version": 2, "folders": ["/a/n"] * 3},
        {"version": 2, "folders": ["n"]},
        {"version": 2, "folders": ["/a/other"]},
        {"version": 2, "folders": [7]},
    ],
)
def test_a_record_that_names_something_else_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no version and folders|not this task's"):
        Group.from_json(data, "n")


def test_a_half_made_group_is_taken_away_again(make_kernel: Callable[[int], Kernel]) -> None:
    kernel = make_kernel(1)
    memory, cpu = kernel.group("memory"), kernel.group("cpu")
    kernel.refused.add(f"{cpu}/n/cpu.cfs_quota_us")
    with pytest.raises(OSError, match="busy"):
        Group.create(Parents(1, str(memory), str(cpu)), "n", memory=1, cpu=1.0)
    assert not (memory / "n").exists()
    assert not (cpu / "n").exists()

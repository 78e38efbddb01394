"""The Dockerfile, read but not built: a build takes minutes (`make image`, `python3 -m tools
test-image`).
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from crawler_lifecycle.settings import Settings

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """Return instructions and arguments, with continued lines joined and without comments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (name, rest.strip())
        for name, _, rest in (line.partition(" ") for line in lines if line.strip())
    ]


STEPS = instructions()
FINAL = STEPS[max(n for n, (name, _) in enumerate(STEPS) if name == "FROM") :]


def of(name: str, steps: list[tuple[str, str]] = FINAL) -> list[str]:
    return [rest for found, rest in steps if found == name]


def test_what_is_copied_exists_and_gets_past_dockerignore() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    let_in = [line[1:] for line in lines if line.startswith("!")]
    stages = {rest.split(" AS ")[1] for rest in of("FROM", STEPS) if " AS " in rest}
    for rest in of("COPY", STEPS):
        words = [word for word in rest.split() if not word.startswith("--")]
        if origin := re.search(r"--from=(\S+)", rest):
            assert origin[1] in stages
            continue
        for source in words[:-1]:
            assert any(fnmatch(source, pattern) or source == pattern for pattern in let_in), source
            made = source.startswith("dist/") and "-d dist" in (ROOT / "Makefile").read_text()
            assert made or (ROOT / source).exists(), source


def test_it_runs_as_nobody_and_handles_its_signals() -> None:
    assert of("USER") == ["65532:65532"]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert of("ENTRYPOINT") == ['["crawlctl"]']
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "crawlctl" in scripts
    assert of("RUN") == [], "the final stage needs no shell"
    assert len(of("COPY")) == 2


def test_the_base_is_pinned_in_one_place_and_can_be_pinned_harder() -> None:
    before = STEPS[: next(n for n, (name, _) in enumerate(STEPS) if name == "FROM")]
    builds, ships = [rest for name, rest in before if name == "ARG"]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+", builds)
    assert ships == "RUNTIME_IMAGE=${PYTHON_IMAGE}"
    assert of("FROM", STEPS) == ["${PYTHON_IMAGE} AS build", "${RUNTIME_IMAGE}"]


def test_no_command_of_another_package_and_no_time_gets_into_it() -> None:
    locked, own = [rest for rest in of("RUN", STEPS) if "pip" in rest and " install " in rest]
    assert "--without-pip" in of("RUN", STEPS)[0]
    assert locked.endswith("find /opt/crawler-lifecycle/bin -type f -delete")
    assert "PYTHONHASHSEED=0 python -m compileall" in own
    assert "unchecked-hash" in own


def test_only_locked_wheels_are_installed() -> None:
    installs = [rest for rest in of("RUN", STEPS) if " install " in rest and "-m pip" in rest]
    locked, own = installs
    assert "--require-hashes" in locked
    assert "--only-binary :all:" in locked
    assert "--no-index --no-deps" in own


@pytest.mark.parametrize("name", ["version", "revision", "title", "description"])
def test_labels(name: str) -> None:
    assert f"org.opencontainers.image.{name}=" in of("LABEL")[0]


def test_its_environment_is_made_of_settings_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = dict(pair.split("=", 1) for pair in of("ENV")[0].split())
    assert pairs["TEMPORAL_WORKER_BUILD_ID"] == "${BUILD_ID}"
    assert pairs["PYTHONDONTWRITEBYTECODE"] == "1"
    ours = {name: value for name, value in pairs.items() if name.startswith("LIFECYCLE_")}
    assert ours
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    loaded = Settings.load()
    assert loaded.log.format == "json"
    assert str(loaded.worker.metrics_port) in of("EXPOSE")[0].split()
    for port in (loaded.gateway.port, loaded.scheduler.port, loaded.worker.health_port):
        assert str(port) in of("EXPOSE")[0].split()

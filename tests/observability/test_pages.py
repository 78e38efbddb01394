"""The pages for operators are true: the settings, commands, metrics and tests that they name exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest

from crawler_lifecycle.cli import session
from crawler_lifecycle.cli.main import build
from crawler_lifecycle.gateway.metrics import Metrics as GatewayMetrics
from crawler_lifecycle.scheduler.app import SchedulerMetrics
from crawler_lifecycle.settings import Settings, variables
from tests.support.temporal import temporal_binary
from tools.settings_page import described

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


# --- settings -------------------------------------------------------------------------------------


def test_the_page_has_the_default_and_the_meaning_of_each_setting() -> None:
    page = (DOCS / "settings.md").read_text()
    assert described(page) == page, "python -m tools.settings_page writes it"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "no line for LIFECYCLE_WORKER__THREADS$"),
        (
            "- `LIFECYCLE_WORKER__THREADS`\n" * 2,
            "LIFECYCLE_WORKER__THREADS is not a setting, or is on the page twice",
        ),
        ("- `LIFECYCLE_WORKER__THREAD`\n", "LIFECYCLE_WORKER__THREAD is not a setting"),
    ],
)
def test_a_setting_stands_on_the_page_once(line: str, problem: str) -> None:
    page = re.sub(
        r"(?m)^- `LIFECYCLE_WORKER__THREADS`.*\n", line, (DOCS / "settings.md").read_text()
    )
    with pytest.raises(ValueError, match=problem):
        described(page)


def test_every_variable_that_a_page_names_exists() -> None:
    known = set(variables())
    prefixes = {name.rsplit("__", 1)[0] for name in known} | {"LIFECYCLE"}
    for page in sorted(DOCS.glob("*.md")):
        named = set(re.findall(r"\bLIFECYCLE_[A-Z_]*[A-Z]\b(?!__)", page.read_text()))
        assert named - known - prefixes == set(), page.name


def test_the_file_of_the_example_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.search(r"```toml\n(.*?)```", (DOCS / "settings.md").read_text(), re.DOTALL)
    assert text
    (tmp_path / "lifecycle.toml").write_text(text[1])
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(tmp_path / "lifecycle.toml"))
    assert Settings.load().worker.threads == tomllib.loads(text[1])["worker"]["threads"]


# --- commands -------------------------------------------------------------------------------------


def commands(program: str) -> list[tuple[str, str]]:
    """Return (page, command line) for every line in a code block that calls a program."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(
            r"^```(?:\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s(?:&&|\|\||\||>)\s|\$\(", line.split(" #")[0]):
                    words = part.strip().removeprefix("$ ").rstrip(")")
                    if words.startswith(f"{program} "):
                        found.append((page.name, words))
    return found


def test_crawlctl_understands_what_the_pages_tell_it() -> None:
    told = commands("crawlctl")
    assert len([line for page, line in told if page == "operations.md"]) >= 25
    for line in {line for _, line in told}:
        _understands(line)


def _understands(line: str) -> None:
    placeholders = {
        "RUN": "7",
        "TASK": "12",
        "N": "3",
        "ID": "x",
        "NAME": "x",
        "CRAWLER": "x",
        "ROLE": "control",
    }
    words = [placeholders.get(word.removeprefix("$"), word) for word in shlex.split(line)[1:]]
    _, rest = session.split(words)
    try:
        build().parse_args(rest, print_error=False, exit_on_error=False)
    except Exception as error:
        error.add_note(line)
        raise


#: Options of every command of the Temporal CLI, which its help names in only one place.
GLOBAL = ("--namespace", "--address", "--output", "--tls", "--api-key", "--profile")


def test_the_temporal_cli_knows_the_commands_and_options_of_the_pages() -> None:
    shown: dict[str, str] = {}
    for page, line in commands("temporal"):
        words = shlex.split(line)[1:]
        if words[0] == "crawl":  # our own extension: `temporal crawl` is `crawlctl`
            _understands(shlex.join(["crawlctl", *words[1:]]))
            continue
        verb = " ".join(takewhile(lambda word: not word.startswith("-"), words))
        if verb not in shown:
            command = [temporal_binary(), *verb.split(), "--help"]
            shown[verb] = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        assert f"temporal {verb}" in shown[verb], (page, line)
        options = {word.split("=")[0] for word in words if word.startswith("--")} - set(GLOBAL)
        assert [option for option in options if option not in shown[verb]] == [], (page, line)


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "prefix"), [
    (bytes(GatewayMetrics().answer().body).decode(), "crawler_lifecycle_gateway_"),
    (bytes(SchedulerMetrics().answer().body).decode(), "crawler_lifecycle_scheduler_"),
])  # fmt: skip
def test_the_figures_of_the_services_are_those_of_the_page(text: str, prefix: str) -> None:
    shown = {line.split()[2] for line in text.splitlines() if line.startswith(f"# TYPE {prefix}")}
    shown = {name for name in shown if not name.endswith("_created")}
    page = set(
        re.findall(rf"^- `({prefix}\w+)`", (DOCS / "observability.md").read_text(), re.MULTILINE)
    )
    assert shown == page


# --- tests and units ------------------------------------------------------------------------------


def test_every_test_that_the_security_page_names_exists() -> None:
    pages = "".join((ROOT / folder / "security.md").read_text() for folder in ("tests", "docs"))
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", pages)
    assert len(named) >= 20
    missing = []
    for path, name in named:
        file = ROOT / path
        if not file.is_file() or (
            name and not re.search(rf"^(?:async )?def {name}\(", file.read_text(), re.MULTILINE)
        ):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_every_requirement_has_an_answer() -> None:
    page = (ROOT / "tests" / "security.md").read_text()
    assert re.findall(r"^\| S(\d+) ", page, re.MULTILINE) == [str(n) for n in range(1, 21)]


PAGES = sorted(
    [
        *DOCS.glob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "deploy" / "README.md",
    ]
)


def test_pages_link_to_files_that_exist() -> None:
    missing = []
    for page in PAGES:
        for target in re.findall(
            r"\]\(([\w./-]+\.[a-z]+|[\w./-]+/)(?:#[\w-]+)?\)", page.read_text()
        ):
            if not (page.parent / target).exists():
                missing.append(f"{page.name} -> {target}")
    assert missing == []


def test_modules_and_rooms_that_pages_name_exist() -> None:
    """Paths of modules on every page, and of rooms on pages for developers.

    They begin at the package or the root.
    """
    missing = []
    for page in PAGES:
        rooms = "|/" if page.name in ("architecture.md", "CONTRIBUTING.md") else ""
        for named in re.findall(rf"`([a-z_]+(?:/\w+)*(?:/\w+\.py{rooms}))`", page.read_text()):
            if not any(
                (base / named).exists()
                for base in (ROOT, ROOT / "crawler_lifecycle", ROOT / "tests/kubernetes")
            ):
                missing.append(f"{page.name}: {named}")
    assert missing == []


def test_the_unit_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    """systemd itself checks it where it is installed; its form and its commands are checked in any
    case.
    """
    text = re.search(r"```ini\n(.*?)```", (DOCS / "deployment.md").read_text(), re.DOTALL)
    assert text
    unit = text[1]
    assert re.findall(r"^\[(\w+)\]", unit, re.MULTILINE) == ["Unit", "Service", "Install"]
    grace = re.search(r"^TimeoutStopSec=(\d+)", unit, re.MULTILINE)
    assert grace
    assert int(grace[1]) > Settings().worker.grace_s
    assert "KillMode=process" in unit, (
        "crawls of the local cluster go on while a worker is replaced"
    )
    program = re.search(r"^ExecStart=\S*/crawlctl (.+)$", unit, re.MULTILINE)
    assert program
    build().parse_args(
        program[1].replace("%i", "all").split(), print_error=False, exit_on_error=False
    )
    if shutil.which("systemd-analyze"):
        file = tmp_path / "crawler-lifecycle@.service"
        file.write_text(
            re.sub(r"^(ExecStart=)\S+", rf"\1{sys.executable}", unit, flags=re.MULTILINE)
        )
        done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
        assert "Unknown" not in done.stderr

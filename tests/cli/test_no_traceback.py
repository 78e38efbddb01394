"""No traceback reaches a person: every verb in bad folders, with bad files and modules, with a
strange gateway.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

#: Executes each line of its input, a list of words, in a separate process, and prints exit code and
#: output. The modules of all verbs are imported once, before the processes fork.
DRIVER = """
import gc, importlib, json, os, pkgutil, signal, sys, tempfile
gc.disable()
from crawler_lifecycle import cli
for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from crawler_lifecycle.cli import main
import crawler_lifecycle.settings, crawler_lifecycle.compose, cyclopts, httpx
gc.freeze()
gc.enable()
for line in sys.stdin:
    words, output = json.loads(line), os.memfd_create("output")
    child = os.fork()
    if child == 0:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setsid()
        signal.alarm(8 if words[0] in sys.argv[1:] else 60)  # those serve until somebody ends them
        main.main(words)
    _, status = os.waitpid(child, 0)
    with open(output, errors="replace") as file:
        file.seek(0)
        print(json.dumps([words, os.waitstatus_to_exitcode(status), file.read()]), flush=True)
"""
#: Verbs that run until they are stopped.
SERVICES = ("dev", "worker", "gateway", "scheduler", "mcp")
#: What somebody may type in place of a name, a number or a file.
WORDS = (
    "1",
    "nope:x",
    "broken:build",
    "ends:build",
    "syntax:build",
    "üß",
    "/nowhere/x",
    "../..",
    "%25",
    "-1",
    "a b",
)
FILES = ("/nowhere/x", ".", "secret", "/dev/null")
BROKEN = "def build(*words):\n    return {}[words]\nclass Manager:\n    pass\n"


def _verbs() -> Iterator[list[str]]:
    from crawler_lifecycle.cli import main

    for group in (
        main.RUNS,
        main.SERVICES,
        main.PROGRAM,
        *(feature.verbs for feature in main.FEATURES),
    ):
        yield from ([name] for name in group)
    for noun in (*main.NOUNS, *(noun for feature in main.FEATURES for noun in feature.nouns)):
        yield from ([noun.name, verb] for verb in noun.verbs)


def _calls(seed: int, processes: bool) -> list[list[str]]:
    """Return half of the verbs, with up to two words and perhaps a file.

    With ``processes``, include verbs that start some.
    """
    chance, calls = random.Random(seed), []
    for verb in _verbs():
        if verb[0] in SERVICES or chance.random() < 0.5:
            continue
        words = chance.choices(WORDS, k=chance.choice((0, 1, 1, 2)))
        option = chance.choice(
            ("--file", "--token-file", "--download", "--task-file", "--state-dir")
        )
        calls.append([*verb, *words, *chance.choice(([], [option, chance.choice(FILES)]))])
    calls.append(["list", "--token-file", "/dev/zero"])
    if processes:
        calls += [[verb] for verb in SERVICES]
        calls += [
            [*verb, word]
            for verb in (("graph", "start"), ("manager", "plan"))
            for word in WORDS[1:5]
        ]
    return calls


def _played(folder: Path, calls: list[list[str]], **more: str) -> list[tuple[list[str], int, str]]:
    """Execute the calls in this folder, as a user whom permissions bind."""
    bound = [sys.executable]
    if os.geteuid() == 0:
        bound = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner", *bound]
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LIFECYCLE_", "TEMPORAL_"))
    }
    env |= {"HOME": "/nowhere", "TEMPORAL_ADDRESS": "127.0.0.1:1"} | more
    done = subprocess.run(
        [*bound, "-c", DRIVER, *SERVICES],
        input="".join(json.dumps(call) + "\n" for call in calls),
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def _are_told(played: list[tuple[list[str], int, str]], calls: list[list[str]]) -> None:
    bad = [
        (words, code, output)
        for words, code, output in played
        if "Traceback" in output
        or "a defect of crawlctl" in output
        # The driver ends verbs that run until they are stopped.
        or (code < 0 and words[0] not in SERVICES and words[:2] != ["webhook", "receive"])
    ]
    assert bad == []
    assert len(played) == len(calls)
    assert any("crawlctl: " in output for _, _, output in played)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a difficult name, unusable modules and an unreadable file."""
    found = tmp_path / "a%25b ü?#"
    found.mkdir()
    (found / "broken.py").write_text(BROKEN)
    (found / "ends.py").write_text("import sys\nsys.exit(3)\n")
    (found / "syntax.py").write_text("def build(:\n")
    (found / "secret").write_text("x")
    (found / "secret").chmod(0)
    yield found
    found.chmod(0o700)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    "what", ["its letters cannot be shown", "not writable", "not readable", "a file", "a folder"]
)
def test_in_a_bad_folder(folder: Path, what: str) -> None:
    """Its name or permissions are unusual, its ``.crawl`` is a file, or its ``dev.json`` is a
    folder.
    """
    more = {}
    if what == "its letters cannot be shown":
        more = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    elif what == "not writable":
        folder.chmod(0o500)
    elif what == "not readable":
        folder.chmod(0o000)
    elif what == "a file":
        (folder / ".crawl").write_text("")
    else:
        (folder / ".crawl" / "dev.json").mkdir(parents=True)
    calls = _calls(len(what), processes=what == "not writable")
    _are_told(_played(folder, calls, **more), calls)


def test_in_a_folder_that_is_gone(folder: Path) -> None:
    calls = _calls(1, processes=True)
    gone = folder / "gone"
    gone.mkdir()
    script = DRIVER.replace("for line in", f"os.rmdir({str(gone)!r})\nfor line in", 1)
    done = subprocess.run(
        [sys.executable, "-c", script, *SERVICES],
        input="".join(json.dumps(call) + "\n" for call in calls),
        cwd=gone,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    played = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    _are_told(played, calls)  # type: ignore[arg-type]
    expected = "crawlctl: the working directory, or the output: No such file or directory"
    assert {(code, output.splitlines()[0]) for _, code, output in played} == {(1, expected)}


class Strange(BaseHTTPRequestHandler):
    """A gateway that answers every request with the same meaningless JSON."""

    answer = b"{}"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("answer", ["{}", "no JSON"])
def test_beside_a_gateway_that_answers_nonsense(folder: Path, answer: str) -> None:
    handler = type("Handler", (Strange,), {"answer": answer.encode()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        calls = [
            [*call, "--timeout", "3"]
            for call in _calls(2, processes=False)
            if call[:1] != ["doctor"]
        ]
        played = _played(
            folder, calls, LIFECYCLE_GATEWAY__URL=f"http://127.0.0.1:{server.server_port}"
        )
        server.shutdown()
    # It may be reported as a defect of its own, because no gateway of ours responds like that.
    _are_told(
        [
            (words, code, output.replace("a defect of crawlctl", ""))
            for words, code, output in played
        ],
        calls,
    )

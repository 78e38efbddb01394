"""The user as whom a crawler runs, and what it can read of ours."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local import launch
from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.processes import crawl_user
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.runner import child
from tests.clusters.local.local_fixture import RUN, STUBBORN, Fixture, wait_until
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

NOBODY = pwd.getpwnam("nobody")
#: An interpreter that every user may execute; that of the tests may be in somebody's home.
PYTHON = "/usr/bin/python3"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

#: Tries what a crawler must not do, and prints the results.
TRIES = """
import json, os, signal, sys
files, told = os.environ["CRAWL_FILES_DIR"], {}
folder = os.path.dirname(files)
def attempt(name, call):
    try:
        call()
        told[name] = "done"
    except OSError as error:
        told[name] = type(error).__name__
def write(path):
    with open(path, "w") as file:
        file.write("x")
supervisor = os.getppid()
while folder not in open(f"/proc/{supervisor}/cmdline").read().split("\\0"):
    supervisor = int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])
attempt("signal", lambda: os.kill(supervisor, signal.SIGKILL))
attempt("environ", lambda: open(f"/proc/{supervisor}/environ", "rb").read())
attempt("spec", lambda: open(folder + "/spec.json").read())
attempt("replace", lambda: os.rename(files + "/x", folder + "/process.json") if write(files + "/x") is None else None)
attempt("remove", lambda: os.unlink(folder + "/supervisor.json"))
attempt("others", lambda: os.listdir(os.path.dirname(os.path.dirname(folder))))
attempt("state", lambda: write(os.environ["CRAWL_STATE_DIR"] + "/kept"))
told |= {"ids": [os.getresuid(), os.getresgid(), os.getgroups()], "home": [os.environ["HOME"], os.environ["USER"]]}
with open(os.environ["CRAWL_STATS_FILE"], "w") as file:
    json.dump({"pages": 3}, file)
with open(files + "/told", "w") as file:
    json.dump(told, file)
"""


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user may enter, with the runner in it."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    shutil.copytree(launch._RUNNER, folder / "runner")
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    monkeypatch.setattr(launch, "_RUNNER", str(folder / "runner"))
    yield folder
    shutil.rmtree(folder)


def crawler(code: str) -> CrawlerDefinition:
    return CrawlerDefinition("demo", CrawlerKind.COMMAND, command=[PYTHON, "-I", "-S", "-c", code])


@needs_root
def test_a_crawler_of_another_user_has_what_is_its_own_and_nothing_of_ours(public: Path) -> None:
    old = os.umask(0o077)
    try:
        fixture = Fixture(public, python=PYTHON, base_dir=public, run_as="nobody")
        fixture.cluster.deploy(fixture.deployment(), crawler(TRIES))
        seen = fixture.until_on_file()
    finally:
        os.umask(old)
    assert (seen.end.exit_code, seen.end.finish_reason) == (0, "finished"), (
        fixture.folder() / "log"
    ).read_text()
    assert seen.counters.pages == 3
    told = json.loads((fixture.folder() / "files/told").read_text())
    assert told.pop("ids") == [[NOBODY.pw_uid] * 3, [NOBODY.pw_gid] * 3, []]
    assert told.pop("home") == [NOBODY.pw_dir, "nobody"]
    assert told.pop("state") == "done"
    assert set(told.values()) == {"PermissionError"}, told
    fixture.close()


@needs_root
@pytest.mark.parametrize("user", [None, "nobody"])
def test_only_crawlers_of_our_own_user_share_a_cache_of_code(
    public: Path, user: str | None
) -> None:
    """Another user is set so that crawlers cannot change what others execute."""
    fixture = Fixture(public, python=PYTHON, base_dir=public, run_as=user)
    deployed = replace(fixture.deployment(), code=Code(f"sha256:{'1' * 64}", "v1"))
    fixture.cluster.deploy(deployed, crawler("pass"))
    spec = json.loads((fixture.folder() / "spec.json").read_text())
    assert ("CRAWL_CODE_CACHE" in spec["contract"]) is (user is None)
    fixture.until_on_file()
    fixture.close()


@needs_root
def test_one_of_another_user_is_stopped_and_killed_like_any_other(public: Path) -> None:
    fixture = Fixture(public, python=PYTHON, base_dir=public, run_as=str(NOBODY.pw_uid))
    fixture.cluster.deploy(fixture.deployment(), crawler(STUBBORN))
    wait_until((fixture.folder() / "files/ready").exists)
    fixture.cluster.stop(run_ref(RUN), fixture.ref())
    fixture.cluster.kill(run_ref(RUN), fixture.ref())
    end = fixture.poll().end
    assert (end.exit_code, end.signal) == (137, 9)
    fixture.close()


@needs_root
def test_a_program_that_the_user_cannot_execute_ends_as_such(public: Path) -> None:
    (public / "closed").mkdir(mode=0o700)
    fixture = Fixture(public, python=PYTHON, base_dir=public / "closed", run_as="nobody")
    fixture.cluster.deploy(fixture.deployment(), crawler("pass"))
    end = fixture.until(Phase.ENDED).end
    assert end.reason == "ContainerCannotRun"
    assert "PermissionError" in str(end.message)
    fixture.close()


@needs_root
def test_folders_that_the_service_made_let_the_user_pass_and_no_others(public: Path) -> None:
    """A service starts with umask 077, which also applies to the parent folders that it creates."""
    os.umask(0o077)
    state = public / "made" / "by us" / "state"
    LocalCluster(state, 1, run_as="nobody")
    poll = [PYTHON, "-I", "-S", "-c", "import os, sys; os.stat(sys.argv[1])", str(state / "tasks")]
    for allowed in (True, False):
        done = subprocess.run(
            poll, user="nobody", group=NOBODY.pw_gid, extra_groups=[], cwd="/", capture_output=True
        )
        assert (done.returncode == 0) == allowed, done.stderr
        # Somebody closes an existing folder: it stays closed, and the service reports this.
        (public / "made").chmod(0o700)
    assert f"cannot enter {public / 'made'} (mode 0700)" in refusal(
        public / "made" / "by us", "nobody"
    )
    assert (public / "made").stat().st_mode & 0o777 == 0o700


def refusal(folder: Path, run_as: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        LocalCluster(folder / "state", 1, run_as=run_as)
    return str(refused.value)


def test_what_cannot_be_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_user.os, "geteuid", lambda: 1000)
    assert refusal(tmp_path, "nobody") == (
        "LIFECYCLE_CLUSTER__RUN_AS: 'nobody' needs a scheduler service that runs as root, but this one has the uid "
        "1000; start the service as root, or unset this setting and start the service as that user"
    )
    monkeypatch.setattr(crawl_user.os, "geteuid", lambda: 0)
    assert "there is no user 'no-such-user' on this machine; create the user (useradd" in refusal(
        tmp_path, "no-such-user"
    )
    assert "there is no user '99999999999' on this machine; name a user that exists" in refusal(
        tmp_path, "99999999999"
    )
    for root in ("root", "0"):
        assert "is root, but no crawler may run as root; name another user" in refusal(
            tmp_path, root
        )
    assert not (tmp_path / "state").exists()
    tmp_path.chmod(0o700)
    said = refusal(tmp_path, "nobody")
    assert "user 'nobody' cannot enter /" in said
    assert "LIFECYCLE_CLUSTER__STATE_DIR" in said


@needs_root
def test_a_hidden_process_is_not_read_by_its_own_user(public: Path) -> None:
    """Environment, memory and files: everything that the kernel shows to a debugger of the same
    user.
    """
    shutil.copy(child.__file__, public / "own.py")
    (public / "own.py").chmod(0o644)
    code = f"import sys; sys.path.insert(0, {str(public)!r}); import own; print(own.hide_environment(), flush=True)"
    ask = "import sys; open(sys.argv[1], 'rb').read(1)"
    command = [PYTHON, "-I", "-S", "-c", f"{code}; input()"]
    other: dict[str, object] = {
        "user": "nobody",
        "group": NOBODY.pw_gid,
        "extra_groups": [],
        "cwd": "/",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={"KEY": "secret"}, **other, **pipes) as service:  # type: ignore[call-overload]
        assert service.stdout.readline() == b"True\n"
        for name in ("environ", "mem", "maps", "fd/0"):
            asked = [PYTHON, "-I", "-S", "-c", ask, f"/proc/{service.pid}/{name}"]
            done = subprocess.run(asked, capture_output=True, text=True, **other)  # type: ignore[call-overload]
            assert "PermissionError" in done.stderr, (name, done)
        service.communicate(b"\n")


@pytest.mark.parametrize("verb", ["worker", "gateway", "scheduler"])
def test_every_service_is_hidden_before_it_reads_its_settings(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crawler_lifecycle.cli.admin import services

    monkeypatch.chdir(tmp_path)  # no stack is nearby
    done: list[str] = []

    class Enough(Exception):
        pass

    def settings() -> object:
        done.append("settings")
        raise Enough

    def hide() -> bool:
        done.append("hidden")
        return True

    monkeypatch.setattr(child, "hide_environment", hide)
    monkeypatch.setattr(services, "load_settings", settings)
    function: Callable[[], int] = getattr(services, verb)
    with pytest.raises(Enough):
        function()
    assert done == ["hidden", "settings"]

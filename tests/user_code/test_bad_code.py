"""What user code may do to its process, and what the worker then reports.

Each process is a real one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crawler_lifecycle.features.managers.domain.manager import EndedJob, Facts, Job, Live
from crawler_lifecycle.ports.protocols import UserCodeFailed
from tests.user_code.user_code_support import Fixture, answer, generator, manager, module, until

pytestmark = pytest.mark.processes

BAD_SOURCES = {
    "blocks for an hour": (
        "time.sleep(3600)\nyield {}",
        r"more than 0\.5 s and was killed.*PAGE_TIMEOUT_S",
    ),
    "never yields": ("while True: pass\nyield {}", r"more than 0\.5 s and was killed"),
    "leaves at once": ("os._exit(3)\nyield {}", r"ended with exit code 3"),
    "kills itself": ("os.kill(os.getpid(), signal.SIGKILL)\nyield {}", r"was ended by SIGKILL"),
    "closes every file": (
        "os.closerange(0, 1000)\ntime.sleep(3600)\nyield {}",
        r"set_parameters_gen: its process",
    ),
    "writes anywhere": (
        "write_everywhere(b'garbage\\n')\ntime.sleep(3600)\nyield {}",
        r"wrote into our pipe",
    ),
    "speaks for the service": (
        'write_everywhere(b\'{"id": 3, "reply": {"items": 7}}\\n\')\nyield {}',
        r"reply to page is not valid: items",
    ),
    "writes without end into the pipe": (
        "while True: write_everywhere(b'x' * 65536)\nyield {}",
        r"message above \d+ bytes",
    ),
    "ignores signals": (
        "for n in range(1, 32):\n    try: signal.signal(n, lambda *_: None)\n    except (OSError, ValueError): pass\n"
        "while True: time.sleep(1)\nyield {}",
        r"more than 0\.5 s and was killed",
    ),
}


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_a_source_out_of_control_is_killed_and_told(fixture: Fixture, case: str) -> None:
    body, said = BAD_SOURCES[case]
    fixture.page_timeout_s = 0.5 if "0\\.5" in said else 20.0
    plan = generator(fixture.folder, body)
    with fixture.begun(plan) as host, pytest.raises(UserCodeFailed, match=said) as failed:
        host.page(0, answer)
    assert str(failed.value).startswith(f"{plan} of manager 1")
    assert not host.process.lives()


def test_where_it_says_that_it_is_can_be_told(fixture: Fixture) -> None:
    """This is recorded while the class works, and every database has to accept it."""
    fixture.page_timeout_s = 0.5
    plan = generator(
        fixture.folder,
        'write_everywhere(b\'{"at": "\\\\ud800\\\\u0000"}\\n\')\ntime.sleep(3600)\nyield {}',
    )
    with fixture.begun(plan) as host:
        with pytest.raises(UserCodeFailed, match=r"more than 0\.5 s"):
            host.page(0, answer)
        assert host.at is not None
        assert host.at.encode().isascii()
        assert host.at.isprintable()


def test_sys_exit_is_an_error_and_no_end(fixture: Fixture) -> None:
    with pytest.raises(UserCodeFailed, match="SystemExit: enough"):
        fixture.cycle(manager(fixture.folder, "def workflow_loop(self):\n    sys.exit('enough')"))


def test_what_eats_memory_is_told(fixture: Fixture) -> None:
    fixture.memory = 256 * 1024**2
    with pytest.raises(UserCodeFailed, match="MemoryError"):
        fixture.cycle(
            manager(fixture.folder, "def workflow_loop(self):\n    return bytearray(2**30)")
        )


def test_what_it_prints_never_blocks_it_and_its_end_is_kept(fixture: Fixture) -> None:
    plan = manager(
        fixture.folder,
        "def workflow_loop(self):\n    for n in range(200_000): print('line', n)\n    os.write(2, b'the last word')\n"
        "    os._exit(1)",
    )
    with fixture.begun(plan) as host:
        with pytest.raises(UserCodeFailed, match=r"its last output: (?s:.*)the last word$"):
            host.cycle(Facts(1, 1, 0.0, 1), answer)
        assert 15 * 1024 < len(host.process.output.take()) <= 16 * 1024


def test_what_is_quoted_of_it_has_no_secrets(fixture: Fixture) -> None:
    raises = "def workflow_loop(self):\n    raise ValueError('password=hunter2 is wrong')"
    ends = "def workflow_loop(self):\n    print('my password=hunter2', 'is wrong')\n    os._exit(1)"
    for body in (raises, ends):
        with pytest.raises(UserCodeFailed, match=r"password=\[redacted\]'? is wrong"):
            fixture.cycle(manager(fixture.folder, body))


def test_printing_without_end_costs_its_own_time_only(fixture: Fixture) -> None:
    fixture.hook_timeout_s = 0.5
    with pytest.raises(UserCodeFailed, match=r"more than 0\.5 s"):
        fixture.cycle(
            manager(
                fixture.folder, "def workflow_loop(self):\n    while True: print('x' * 100_000)"
            )
        )


def test_a_fork_does_not_speak_for_the_process_and_dies_with_it(fixture: Fixture) -> None:
    """The copy continues with the user's code, but neither its replies nor its life count."""
    plan = manager(
        fixture.folder,
        """
        def on_start(self):
            pid = os.fork()
            if pid == 0:
                return
            os.waitpid(pid, 0)
            self.child = os.fork()
            if self.child == 0:
                time.sleep(3600)
            print("child", self.child, flush=True)
        """,
    )
    with fixture.begun(plan) as host:
        assert host.cycle(Facts(1, 1, 0.0, 1, exhausted=True), answer).picked == []
        until(lambda: "child" in host.process.output.newest())
        child = int(re.findall(r"child (\d+)", host.process.output.newest())[-1])
        assert alive(child)
    until(lambda: not alive(child))


def test_what_leaves_its_group_dies_with_it(fixture: Fixture) -> None:
    """Neither its own session nor a dead parent hides it."""
    plan = manager(
        fixture.folder,
        """
        def on_start(self):
            import subprocess
            one = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            two = subprocess.run(["sh", "-c", "setsid sleep 3600 >&2 & echo $!"], stdout=subprocess.PIPE).stdout
            print("left", one.pid, int(two), flush=True)
            os._exit(3)
        """,
    )
    with pytest.raises(UserCodeFailed, match=r"left \d+ \d+") as failed, fixture.begun(plan):
        pass
    left = [int(pid) for pid in re.findall(r"left (\d+) (\d+)", str(failed.value))[0]]
    until(lambda: not any(map(alive, left)))


def test_a_hook_that_hangs_names_its_job(fixture: Fixture) -> None:
    fixture.hook_timeout_s = 1.0
    plan = manager(fixture.folder, "def bad_outcome_hook(self, *args):\n    time.sleep(3600)")
    ended = EndedJob(Live(42, "1", Job("shop"), 1), 1, True, "failed", True)
    with pytest.raises(UserCodeFailed, match="bad_outcome_hook: it took more than 1 s") as failed:
        fixture.cycle(plan, Facts(1, 1, 0.0, 2, ended=[ended]))
    assert failed.value.item_id == 42


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import nowhere_to_be_found",
            "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("class M(GeneratorCrawlManager:", "SyntaxError"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("os._exit(4)", "ended with exit code 4"),
        ("class Other(GeneratorCrawlManager): name = 'o'", "no class 'M'; name another class"),
        ("class M: pass", "the class is not a manager"),
        (
            "class M(GeneratorCrawlManager):\n    on_item_error = 'ignore'",
            "on_item_error: 'ignore' is not allowed",
        ),
    ],
)
def test_a_class_that_cannot_be_loaded_is_told_and_not_tried_again(
    fixture: Fixture, text: str, said: str
) -> None:
    plan = module(fixture.folder, text) + ":M"
    with pytest.raises(UserCodeFailed, match=re.escape(said)) as failed, fixture.begun(plan):
        pass
    assert failed.value.missing or "is not allowed" in said


def test_a_module_that_no_setting_names_is_never_imported(fixture: Fixture, tmp_path: Path) -> None:
    with (
        fixture.hosts() as hosts,
        pytest.raises(
            UserCodeFailed, match="antigravity:M: its module is not in LIFECYCLE_USER_CODE__MODULES"
        ),
        hosts.use("antigravity:M", 1, 1, 0, lambda: None),
    ):
        pass
    assert hosts.state()["started"] == 0


def test_users_code_sees_none_of_our_secrets(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = (
        "LIFECYCLE_DATABASE__URL",
        "TEMPORAL_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "PUSHER_SECRET",
        "SOME_PASSWORD",
    )
    for name in ours:
        monkeypatch.setenv(name, "hunter2")
    plan = manager(
        fixture.folder,
        "def on_start(self):\n    print('PATH' in os.environ, 'hunter2' in f'{os.environ}{sys.argv}')",
    )
    with fixture.begun(plan) as host:
        until(lambda: host.process.output.newest().endswith("True False"))


def alive(pid: int) -> bool:
    """Return whether such a process is executing; a zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"

"""``crawlctl dev``: started, restarted, refused, ended."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.stack import dev, layout, processes
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.cli.stack.supervise import Part
from examples.story_checks import run_folder
from tests.dev.dev_support import ANSWER_S, Dev, gone, wait_until

#: A catalogue with an error in its third line.
SURPLUS = "- name: x\n  kind: command\n  surplus: 1\n"
#: A catalogue with a crawl that ends when it is killed.
LONG = "- {name: long, kind: command, command: [sleep, '600']}\n"
PARTS = {"temporal", "scheduler", "gateway", "worker", "site"}


def _status(url: str) -> int:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    try:
        connection.request("GET", address.path or "/")
        return connection.getresponse().status
    finally:
        connection.close()


def _page(url: str) -> str:
    asked = urllib.request.Request(url, headers={"Accept": "text/html"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def test_everything_is_up_and_dev_json_says_where(running: Dev) -> None:
    known = running.known
    assert set(known["processes"]) == PARTS
    assert all(processes.start_time(pid) for pid in known["processes"].values())
    assert _status(known["gateway"] + "/readyz") == 200
    assert _status(known["scheduler"] + "/healthz") == 200
    assert _status(known["site"] + "/healthz") == 200
    assert known["temporal_ui"] is known["metrics"] is None, "only when they are asked for"
    assert known["namespace"] == "default"
    assert known["database"] == f"sqlite:///{running.state_dir}/lifecycle.db"
    assert known["archive"] == f"file://{running.state_dir}/archive"
    assert (running.state_dir / "dev.json").stat().st_mode & 0o077 == 0, (
        "a database's address may hold a password"
    )
    assert known["events"] == f"file://{running.state_dir}/events.jsonl"
    for part in PARTS | {"database"}:
        assert (running.state_dir / "logs" / f"{part}.log").exists()


def test_what_it_keeps_is_its_owners_alone(running: Dev) -> None:
    """Databases, sockets, logs and archives. Other users may pass through the folders of crawls
    that run as a user of their own.
    """
    found = [path for path in running.state_dir.rglob("*") if not path.is_symlink()]
    assert len(found) > 20
    others = [
        str(path)
        for path in found
        if path.lstat().st_mode & (0o077 if not path.is_dir() else 0o066)
    ]
    assert others == []


def test_the_banner_is_short_and_names_the_next_command(running: Dev) -> None:
    lines = running.spoken.splitlines()
    assert len(lines) <= 10
    assert lines[0] == f"web UI     {running.known['gateway']}/"
    assert lines[-1].endswith("start services")


def test_the_banner_has_no_password_and_proposes_no_crawler_that_is_not_there(
    tmp_path: Path,
) -> None:
    url = "mysql+pymysql://crawl:correct-horse@127.0.0.1:3306/life"
    stack = Stack(layout.Layout(tmp_path, dict.fromkeys(layout.PORTS, 1), database=url))
    spoken = dev.banner(stack, 1.0)
    assert "correct-horse" not in spoken
    assert "mysql+pymysql://crawl:***@127.0.0.1:3306/life" in spoken
    assert spoken.endswith("crawler list")


def test_crawlers_are_sent_to_the_site_that_runs(running: Dev) -> None:
    catalogue = yaml.safe_load((running.state_dir / "crawlers.yaml").read_text())
    assert {c["args"]["site"]["default"] for c in catalogue} == {running.known["site"]}
    assert all(os.path.isabs(c["project"]) for c in catalogue)
    assert "services" in running.crawlctl("crawler", "list", "-o", "name").stdout.split()


def test_a_second_dev_is_refused_and_says_by_whom(running: Dev) -> None:
    second = Dev(running.state_dir)
    second.launch()
    assert second.process is not None
    assert running.process is not None
    output, _ = second.process.communicate(timeout=ANSWER_S)
    assert second.process.returncode == 4
    assert output == ""
    assert (
        f"is already running in {running.state_dir}: {running.known['gateway']}/\n"
        in running.error_output()
    )
    assert running.process.poll() is None


def test_a_killed_part_comes_back_on_its_port(running: Dev) -> None:
    for part in ("gateway", "scheduler", "site", "worker", "temporal"):
        before = running.known
        os.kill(before["processes"][part], signal.SIGKILL)
        wait_until(
            lambda before=before, part=part: (
                running.known["processes"].get(part, 0) not in (0, before["processes"][part])
            )
        )  # type: ignore[misc]
        after = running.known
        same = [name for name in after if name not in ("processes", "started")]
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
    wait_until(lambda: running.crawlctl("list", check=False).returncode == 0)
    wait_until(lambda: _answers(running.known["worker"] + "/readyz"))
    assert "ended by signal 9; starting it again in 0.2 s" in running.error_output()


def _answers(url: str) -> bool:
    try:
        return _status(url) == 200
    except OSError:
        return False


def test_a_taken_port_is_replaced_in_words(dev: Dev) -> None:
    lines: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        plan = layout.Layout(Path(), only_free_ports=True)
        with ExitStack() as claims:
            ports = plan.choose_ports(
                {"gateway": f"http://127.0.0.1:{taken}"}, lines.append, claims
            )
    assert ports["gateway"] != taken
    assert lines == [f"port {taken} is in use; gateway gets {ports['gateway']} instead"]
    assert len(set(ports.values())) == len(layout.PORTS) - len(layout.ON_DEMAND)


def test_interrupted_or_killed_it_takes_its_parts_along_and_crawls_outlive_it(dev: Dev) -> None:
    """A stack is interrupted while it starts, and killed by SIGKILL, which it cannot handle.

    The next start continues with the same crawl. It does not start with the tables of an older
    version, ends its crawls on request, and can start from scratch. test_upgrade covers the start
    after a regular end.
    """
    log, file = dev.state_dir / "logs" / "database.log", dev.state_dir / "dev.json"
    moments: list[Callable[[], object]] = [
        log.exists,
        lambda: file.exists() and "worker" in dev.known["processes"],
    ]
    for begun in moments:
        dev.launch()
        wait_until(begun)
        assert dev.end(signal.SIGINT) in (0, -signal.SIGINT, 130)
        if file.exists():
            assert dev.known["processes"] == {}
    # A crawl that needs nothing of the stack, because the demonstration site ends with it.
    dev.state_dir.parent.joinpath("crawlers.yaml").write_text(LONG)
    dev.start()
    run_id = _started(dev)
    crawler, before = _crawlers_of(dev, run_id), dev.known
    (row,) = _namespaces(dev)
    dev.end(signal.SIGKILL)
    wait_until(lambda: gone(before["processes"]))

    _is_not_started_over_older_tables(dev)
    assert _crawlers_of(dev, run_id) == crawler

    dev.start("--kill", "--ui")
    assert set(dev.known["processes"]) == PARTS
    assert {name: dev.known[name] for name in ("gateway", "temporal")} == {
        name: before[name] for name in ("gateway", "temporal")
    }
    assert "its UI     http://127.0.0.1" in dev.spoken
    page = f"{dev.known['temporal_ui']}/namespaces/default/workflows/crawl%2Flong%2F"
    assert _status(page) == 200
    assert f'href="{page}' in _page(dev.known["gateway"] + f"/runs/{run_id}")
    assert _namespaces(dev) == [row]
    assert _crawlers_of(dev, run_id) == crawler
    assert dev.crawlctl("describe", str(run_id), "-o", "json").stdout
    assert dev.end(signal.SIGTERM) == 0
    assert _crawlers_of(dev, run_id) == []
    assert dev.error_output().rstrip().endswith("ended; no crawl is running")
    assert _runs(dev) == [("FAILED", "cancelled")]

    _rename_column(dev, "retry_note", to="former")
    with _few_parts("temporal"), chdir(dev.state_dir.parent):
        anew = Stack(layout.Layout(dev.state_dir, only_free_ports=True, recreate=True))
        anew.start()
        anew.stop()
    assert _runs(dev) == []
    (aside,) = dev.state_dir.glob("aside-*")
    assert {"lifecycle.db", "temporal.db", "cluster", "archive"} <= {
        entry.name for entry in aside.iterdir()
    }


def test_ctrl_c_ends_all_of_it_and_a_crawl_continues(running: Dev) -> None:
    """This test comes last, because no other test can use the stack afterwards."""
    catalogue = running.state_dir / "crawlers.yaml"
    catalogue.write_text(catalogue.read_text() + LONG)
    wait_until(lambda: "long" in running.crawlers())
    run_id = _started(running)
    (crawler,), parts = _crawlers_of(running, run_id), running.known["processes"]
    said = len(running.error_output())
    assert running.end(signal.SIGINT) == 0
    assert gone(parts)
    assert running.known["processes"] == {}
    assert "1 run continues" in running.error_output()[said:]
    assert _crawlers_of(running, run_id) == [crawler]
    os.kill(crawler, signal.SIGKILL)
    wait_until(lambda: not processes.of_folder(running.state_dir / "cluster"))


def _runs(dev: Dev) -> list[tuple[str, str]]:
    with closing(sqlite_files.connect(dev.state_dir / "lifecycle.db")) as db:
        return db.execute("SELECT status, outcome FROM run_history").fetchall()


@contextmanager
def _few_parts(*names: str) -> Iterator[None]:
    """Let stacks of this process have only these parts meanwhile."""
    parts = layout.Layout.parts

    def needed(self: layout.Layout, env: Mapping[str, str]) -> dict[str, Part]:
        return {name: part for name, part in parts(self, env).items() if name in names}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout.Layout, "parts", needed)
        yield


def _started(dev: Dev) -> int:
    """A run whose crawler is executing."""
    run_id = int(dev.crawlctl("start", "long", "--poll-minutes", "0.02", "-o", "name").stdout)
    wait_until(lambda: _crawlers_of(dev, run_id))
    return run_id


def _is_not_started_over_older_tables(dev: Dev) -> None:
    """Check that it does not start over older tables, or recreate them while a crawl is running."""
    _rename_column(dev, "retry_note", to="former")
    dev.launch()
    assert dev.process is not None
    assert dev.process.wait(ANSWER_S) == 4
    said = dev.error_output()
    assert "but lacks task_history.retry_note" in said
    assert "crawlctl dev --recreate" in said
    assert "db upgrade" not in said
    dev.launch("--recreate")
    assert dev.process.wait(ANSWER_S) == 4
    assert f"crawls of {dev.state_dir} are still running" in dev.error_output()
    _rename_column(dev, "former", to="retry_note")


def _namespaces(dev: Dev) -> list[bytes]:
    with closing(sqlite_files.connect(dev.state_dir / "temporal.db", "ro")) as db:
        return [row[0] for row in db.execute("SELECT id FROM namespaces WHERE name = 'default'")]


def _crawlers_of(dev: Dev, run_id: int) -> list[int]:
    """Return the process ids of a run's live crawlers."""
    found = []
    for file in run_folder(dev.state_dir, run_id).glob("*/*/process.json"):
        known = json.loads(file.read_text())
        if processes.start_time(known["pid"]) == known["start"]:
            found.append(known["pid"])
    return found


def _rename_column(dev: Dev, name: str, to: str) -> None:
    """Rename a column, so that the table looks like an older version's."""
    with closing(sqlite_files.connect(dev.state_dir / "lifecycle.db")) as db, db:
        db.execute(f"ALTER TABLE task_history RENAME COLUMN {name} TO {to}")


def test_without_a_catalogue_it_says_what_to_do(dev: Dev) -> None:
    dev.launch("--crawlers", "nowhere.yaml")
    assert dev.process is not None
    assert dev.process.wait(ANSWER_S) == 2
    assert "nowhere.yaml" in dev.error_output()
    assert "--crawlers FILE" in dev.error_output()


def _invalid(dev: Dev, catalogue: str) -> str:
    """Return the error message for this catalogue."""
    dev.state_dir.parent.joinpath("crawlers.yaml").write_text(catalogue)
    before = len(dev.error_output()) if dev.process else 0
    dev.launch()
    assert dev.process is not None
    assert dev.process.wait(ANSWER_S) == Exit.USAGE
    return dev.error_output()[before:]


@pytest.mark.slow
def test_what_was_wrong_yesterday_is_no_word_of_today(dev: Dev) -> None:
    """Older messages are in the log. test_supervise covers how the messages of the last start are
    found.
    """
    assert "crawlers.yaml:3" in _invalid(dev, SURPLUS)
    assert not dev.state_dir.joinpath("dev.json").exists(), "it is read before any part starts"
    today = _invalid(dev, "- name: y\n  kind: nonsense\n")
    assert "nonsense" in today
    assert "surplus" not in today


def test_a_broken_catalogue_is_told_before_anything_starts_and_while_it_runs(
    tmp_path: Path,
) -> None:
    file, lines = tmp_path / "crawlers.yaml", list[str]()
    good = "- name: plain\n  kind: command\n  command: [x]\n"
    file.write_text(good + "  again: 3\n")
    stack = Stack(
        layout.Layout(tmp_path / "state", only_free_ports=True, crawlers=file), say=lines.append
    )
    with pytest.raises(CommandFailed, match=f"{file}:4: again: unknown key"):
        stack.start()
    assert not list((tmp_path / "state").glob("*.toml"))
    file.write_text(good)
    stack._read_catalogue()
    stack.tell_catalogue()
    assert lines == []
    file.write_text(good + "  never: 3\n")
    for _ in range(2):
        stack.tell_catalogue()
    assert [line.partition(" since ")[0] for line in lines] == [f"{file}:4 has not been read"]
    file.write_text(good)
    for _ in range(2):
        stack.tell_catalogue()
    assert lines[1:] == [f"{file} can be read again"]

"""Runs one crawler, passes one stop on, and reports how it ended.

runner scrapy --project DIR --spider NAME
runner command [--project DIR] -- argv…
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Any

from . import VERSION, contract
from .child import Child, Ended, become_subreaper, block_signals, hide_environment
from .feeds import Feeds
from .forced import ForcedStop
from .log import CappedLog
from .memory import cgroup_limit
from .signs import Signs
from .state import ANEW, NOT_ASKED, UNKNOWN, WENT_ON, JobState
from .upload import INTERRUPTED, Upload
from .verdict import BEFORE_START, Evidence, exit_of

TICK_SECONDS = 1.0
PROGRESS_SECONDS = 30.0
#: The service stops a run at its deadline. We do so only this many seconds later (the service may be down).
DEADLINE_GRACE_SECONDS = 60.0
TIMED_OUT = "timed_out"
#: Seconds for an upload after an end without a stop; after a stop, the rest of the grace.
UPLOAD_SECONDS = 900.0
#: For reading, after an end that nobody asked for, what stands in the feeds.
FEEDS_SECONDS = 60.0
#: Of the grace, kept for our own end.
MARGIN_SECONDS = 2.0
_LOOK_SECONDS = 0.1
#: What is for us alone, and no business of the crawler.
_OURS = ("CRAWL_UPLOAD_URL", "CRAWL_UPLOAD_TOKEN", "CRAWL_LOG_FILE", "CRAWL_SLOT_FD", "CRAWL_FIELDS")
#: Feeds are counted so often, and for so long at the end, or at that of a crawler that was stopped.
FEED_SECONDS, FEED_END_SECONDS, FEED_STOP_SECONDS = 5.0, 10.0, 2.0
#: With less than this left on the disk, a failure counts as a full disk.
DISK_RESERVE = 64 * 1024


class Runner:
    """One crawler from its start to the summary."""

    def __init__(self, terms: contract.Contract, *, scrapy: bool) -> None:
        self._terms = terms
        self._scrapy = scrapy
        self._state = JobState(terms.state_dir) if scrapy and terms.state_dir else None
        # The crawler writes to another file and we check its content: readers never see its errors.
        self._scratch = None if terms.stats_file else _scratch(terms)
        self._child_stats = f"{terms.stats_file or os.path.join(str(self._scratch), 'stats.json')}.crawler"
        self._resumed = False
        self._resumption: contract.Json = {}
        self._complained = False
        self._stats: dict[str, Any] = {}
        self._told: contract.Json = {}
        """What the crawler itself said last."""
        self._feeds = Feeds(terms.files_dir, terms.fields) if terms.files_dir and terms.items else None
        self._feeds_due = time.monotonic() + FEED_SECONDS
        self._signs = Signs()
        self._wrote_at: str | None = None
        self._stats_raw: contract.Json | None = None
        self._began = False
        self._message: str | None = None
        self._statistics: contract.Json = {}
        self._started_at = contract.now()
        self._progress_due = time.monotonic() + PROGRESS_SECONDS
        # Measured from now on by the monotonic clock.
        left = None if terms.deadline is None else max(0.0, terms.deadline - time.time() + DEADLINE_GRACE_SECONDS)
        self._backstop = None if left is None else time.monotonic() + left
        self._kill_at: float | None = None
        self._timed_out = False
        self._killed_late = False
        self._forced: ForcedStop | None = None

    def run(self, argv: list[str]) -> int:
        """Run the crawler; the exit code."""
        child = Child(self._terms.stop_signal)
        env = self._environment()
        with contextlib.suppress(OSError):
            os.unlink(self._child_stats)
        if self._state is not None:
            self._open_state(env)
        elif self._terms.attempt > 1:
            self._note_resumption(None if self._terms.resume else False, UNKNOWN if self._terms.resume else NOT_ASKED)
        if child.pending_stop():
            say("It was asked to stop before the crawler was started.")
            return self._finish(Ended(None, None, 0), child)
        log = self._log()
        try:
            child.start(argv, env, log.inlet if log is not None else None)
        except OSError as error:
            self._message = f"The crawler cannot be executed: {error}"
            say(self._message)
            return self._finish(Ended(contract.BAD_CONFIGURATION, None, 0), child)

        if log is not None:
            log.handed_over()

        def tick() -> None:
            self._keep_deadline(child)
            self._tick()

        ended = child.wait(tick, TICK_SECONDS)
        if log is not None:
            log.finish()
        return self._finish(ended, child)

    def _log(self) -> CappedLog | None:
        """The log with a size limit; ``None`` where others keep it, or where it cannot be opened."""
        if self._terms.log_file:
            try:
                return CappedLog(self._terms.log_file)
            except (OSError, RuntimeError) as error:
                say(f"The log is kept without a cap: {error}")
        return None

    def _environment(self) -> dict[str, str]:
        """The crawler's environment: ours, without our private variables and with the values that we know better."""
        env = {name: value for name, value in os.environ.items() if name not in _OURS}
        env["CRAWL_STATS_FILE"] = self._child_stats
        if self._terms.deadline is not None:
            env["CRAWL_DEADLINE"] = contract.moment(self._terms.deadline)
        if self._terms.memory_limit is None and (limit := cgroup_limit()) is not None:
            env["CRAWL_MEMORY_LIMIT"] = str(limit)
        return env

    def _open_state(self, env: dict[str, str]) -> None:
        assert self._state is not None
        self._resumed, note, words = self._state.open(self._terms.resume)
        self._stats = self._state.with_earlier({})
        if self._terms.attempt > 1:
            self._note_resumption(self._resumed, note or NOT_ASKED)
        env["CRAWL_JOB_DIR"] = self._state.folder
        env["CRAWL_RESUME"] = "1" if self._resumed else "0"
        if words:
            say(words)

    def _note_resumption(self, resumed: bool | None, note: str) -> None:
        """Report at once, in the stats and on standard output, whether this attempt continues where the last one
        ended.
        """
        told: contract.Json = {"resumed": resumed, "resume_note": note}
        self._resumption = {name: value for name, value in told.items() if value is not None}
        self._write_stats(self._stats)
        self._print_progress()

    # --- while it runs

    def _tick(self) -> None:
        self._read_stats()
        self._count_feeds()
        if self._signs.look():
            self._wrote_at = contract.now()
            self._write_stats(self._stats)
        if time.monotonic() >= self._progress_due:
            self._progress_due = time.monotonic() + PROGRESS_SECONDS
            self._print_progress()

    def _keep_deadline(self, child: Child) -> None:
        now = time.monotonic()
        # If the sender of the stop later kills us together with the crawler, we have to enforce its grace.
        over = self._grace_over(child)
        if over is not None:
            self._kill_at = over if self._kill_at is None else min(self._kill_at, over)
        if self._kill_at is not None:
            if now >= self._kill_at and not self._killed_late:
                self._killed_late = True
                said = self._why_killed(child)
                self._message = self._message or said
                say(f"{said}.")
                child.kill()
        elif self._backstop is not None and now >= self._backstop and not child.stop_asked:
            self._timed_out = True
            self._kill_at = now + self._terms.stop_grace_s
            self._message = f"Stopped by the runner: it still ran {DEADLINE_GRACE_SECONDS:g} s after its deadline"
            say(self._message)
            child.stop()

    def _grace_over(self, child: Child) -> float | None:
        """The time when a stopped crawler's grace ends, by the monotonic clock: with a forced stop, at once.

        ``None`` where nobody has stopped it, or its grace is not ours to keep.
        """
        if child.stopped_at is None or self._terms.end_grace_s is None:
            return None
        if self._forced is None and self._terms.stop_url and self._terms.stop_token:
            self._forced = ForcedStop(self._terms.stop_url, self._terms.stop_token)
        over = child.stopped_at + self._terms.stop_grace_s
        forced_at = self._forced.at if self._forced is not None else None
        return over if forced_at is None else min(over, forced_at)

    def _why_killed(self, child: Child) -> str:
        if child.stopped_at is not None and self._kill_at is not None:
            after_s = self._kill_at - child.stopped_at
            if after_s < self._terms.stop_grace_s:
                return f"It was killed by a forced stop, {after_s:.0f} s after the stop signal"
        return f"It still ran {self._terms.stop_grace_s:g} s after the stop signal and was killed"

    def _read_stats(self) -> None:
        """Take over the crawler's stats, if they are new and valid."""
        raw = contract.read(self._child_stats)
        if raw is None or raw == self._stats_raw:
            return
        self._stats_raw = raw
        fresh = contract.valid_stats(raw)
        self._message = fresh.pop("message", self._message)
        self._statistics = fresh.pop("scrapystats", self._statistics)
        said = fresh.pop("resumed", None)
        if said is not None and self._resumption and self._state is None:  # for Scrapy's state we know it ourselves
            self._resumption = {"resumed": said, "resume_note": WENT_ON if said else ANEW}
        if fresh:
            fresh.setdefault("updated_at", contract.now())
            self._began = True
            self._told = fresh
            self._combine()

    def _combine(self) -> None:
        """Take for each counter the crawler's own, else that of its feeds, with what earlier attempts counted."""
        counted: contract.Json = {}
        if self._feeds is not None and self._feeds.items is not None:
            counted = {"items": self._feeds.items, "bytes": self._feeds.bytes}
        stats = {**counted, **self._told}
        self._stats = stats if self._state is None else self._state.with_earlier(stats)
        self._write_stats(self._stats)

    def _count_feeds(self, final_s: float | None = None) -> None:
        """Count what stands in feeds, if it is time again; at the end all of it, within so many seconds."""
        now = time.monotonic()
        own = self._told.keys() >= {"items", "bytes"}
        if self._feeds is None or own or (final_s is None and now < self._feeds_due):
            return
        before = self._feeds.items, self._feeds.bytes
        more = self._feeds.look()
        if final_s is not None:
            while more and time.monotonic() < now + final_s:
                more = self._feeds.look()
            if more:
                say(f"There was no time to count all items: only those in the first {self._feeds.bytes} bytes count.")
            else:
                self._feeds.finish()
        self._feeds_due = time.monotonic() + (TICK_SECONDS if more else FEED_SECONDS)
        if (self._feeds.items, self._feeds.bytes) != before:
            self._told["updated_at"] = contract.now()
            self._combine()

    def _write_stats(self, data: contract.Json) -> None:
        if self._terms.stats_file:
            try:
                signs = {"wrote_at": self._wrote_at} if self._wrote_at else {}
                contract.write(self._terms.stats_file, json.dumps({**data, **self._resumption, **signs}))
            except OSError as error:
                if not self._complained:  # once, not every second
                    say(f"The stats cannot be written: {error}")
                self._complained = True

    def _print_progress(self, more: contract.Json | None = None) -> None:
        quiet = self._signs.quiet_s()
        signs = {} if quiet is None else {"quiet_s": quiet}
        _print({"crawl_progress": {**self._stats, **self._resumption, **signs, **(more or {})}})

    # --- the end

    def _finish(self, ended: Ended, child: Child) -> int:
        self._read_stats()
        self._count_feeds(FEED_STOP_SECONDS if child.stop_asked else FEED_END_SECONDS)
        evidence = Evidence(
            scrapy=self._scrapy,
            stop_asked=child.stop_asked,
            stop_signal=self._terms.stop_signal,
            exit_code=ended.exit_code,
            signal=ended.signal,
            finish_reason=self._stats.get("finish_reason"),
            began=self._began,
            disk_full=self._disk_full(),
            killed_late=self._killed_late,
        )
        code, reason = exit_of(evidence)
        resumable = self._resumable(reason)
        if self._timed_out and code != contract.FINISHED:
            # The same words as when the service itself stops a run for this limit.
            code, reason = contract.FAILED, TIMED_OUT
        finish = {"finish_reason": reason, "finished_at": contract.now(), "resumable": resumable}
        statistics = {"scrapystats": self._statistics} if self._statistics else {}
        if self._stats or statistics:
            self._write_stats({**self._stats, **finish, **statistics})
        if statistics and not self._terms.log_file:  # where we keep the log, the file is read as well
            _print({"crawl_stats": self._statistics})
        self._print_progress(finish)
        summary = {
            "runner": VERSION,
            "exit": code,
            **finish,
            "told_to_stop": evidence.stop_asked,  # before its end, which an upload may outlast
            "exit_code": ended.exit_code,
            "own_exit": None if self._scrapy else ended.exit_code,  # one that has a say in what its code means
            "signal": ended.signal,
            **{name: self._stats[name] for name in contract.COUNTERS if name in self._stats},
            **self._resumption,
            "peak_memory": ended.peak_memory or None,
            "started_at": self._started_at,
            "message": self._message[:1000] if self._message else None,
        }
        if self._feeds is not None:
            write_summary(self._terms.summary_file, summary)  # should we be killed meanwhile, this stands
            summary["fields"] = self._fields(child)
        if self._terms.upload_url and self._terms.files_dir:
            # If we are killed meanwhile, this result stays.
            write_summary(self._terms.summary_file, {**summary, "files": {"uploaded": False, "why": INTERRUPTED}})
            summary["files"] = self._upload(child)
        write_summary(self._terms.summary_file, summary)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return code

    def _fields(self, child: Child) -> contract.Json | None:
        """The share of items that fill each field; ``None`` when nothing tells it, or our end is waited for."""
        until = time.monotonic() + FEEDS_SECONDS
        while self._feeds is not None and not child.pending_stop() and time.monotonic() < until:
            if not self._feeds.look():
                self._feeds.finish()
                items, shares = self._feeds.items, self._feeds.fields()
                return {"items": items, "shares": shares} if items and shares else None
        return None

    def _upload(self, child: Child) -> contract.Json:
        """Upload the supporting files to object storage, as long as there is time. Returns the result."""
        assert self._terms.files_dir
        assert self._terms.upload_url
        child.end_leftovers()
        upload = Upload(self._terms.files_dir, self._terms.upload_url, self._terms.upload_token or "")
        upload.start(time.monotonic() + UPLOAD_SECONDS)

        def over() -> bool:
            if child.stopped_at is not None:
                end_grace_s = self._terms.end_grace_s or 0.0
                grace_over = self._grace_over(child) or child.stopped_at + self._terms.stop_grace_s
                upload.hurry(grace_over + end_grace_s - min(MARGIN_SECONDS, end_grace_s / 5))
            return upload.over() or upload.late()

        child.attend(over, _LOOK_SECONDS)
        result: contract.Json = upload.result()
        if result["uploaded"]:
            say(f"Supporting files were uploaded: {result['files']} files, {result['bytes']} bytes.")
        else:
            say(f"The supporting files were not uploaded: {result['why']}")
        return result

    def _resumable(self, reason: str | None) -> bool:
        """Return whether the state may be resumed; then the marker records it for the next attempt."""
        if self._state is None:
            return bool(self._stats.get("resumable", False))
        # A resumed crawl that was stopped before it began leaves the state of the earlier clean stop unchanged.
        if reason != "shutdown" and not (reason == BEFORE_START and self._resumed):
            return False
        try:
            self._state.mark_clean({name: self._stats[name] for name in contract.COUNTERS if name in self._stats})
        except OSError as error:
            say(f"The crawl cannot be resumed, its state cannot be marked: {error}")
            return False
        return True

    def _disk_full(self) -> bool:
        for folder in filter(None, (self._terms.files_dir, self._terms.state_dir)):
            with contextlib.suppress(OSError):
                disk = os.statvfs(folder)
                if disk.f_bavail * disk.f_frsize < DISK_RESERVE:
                    return True
        return False


def _scratch(terms: contract.Contract) -> str:
    """A folder for the crawler's stats where nobody named a file. Raises ``BadConfiguration``."""
    for place in (None, terms.state_dir, terms.files_dir):
        with contextlib.suppress(OSError):
            return tempfile.mkdtemp(prefix=".crawl-" if place else "crawl-", dir=place)
    raise contract.BadConfiguration("CRAWL_STATS_FILE: not set, and no folder for temporary files can be written")


def _print(line: contract.Json) -> None:
    """One line of JSON on standard output, for who reads the log."""
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(1, f"{json.dumps(line)}\n".encode())


def say(text: str) -> None:
    """Write one plain line to the crawler's log. On a full disk only this line is lost."""
    with contextlib.suppress(OSError):
        print(f"[runner] {text}", file=sys.stderr, flush=True)


def write_summary(path: str | None, summary: contract.Json) -> None:
    """The last word; at most 4 KiB."""
    if not path:
        return
    try:
        contract.write(path, contract.summary_text({k: v for k, v in summary.items() if v is not None}))
    except (OSError, ValueError) as error:
        say(f"The summary cannot be written: {error}")


def _refuse(text: str) -> int:
    say(f"Bad configuration: {text}")
    code = contract.BAD_CONFIGURATION
    summary = {"runner": VERSION, "exit": code, "message": text[:1000], "finished_at": contract.now()}
    write_summary(os.environ.get("CRAWL_SUMMARY_FILE"), {**summary, "resumable": False})
    return code


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="runner", description="Runs a crawler and tells truthfully how it went.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    scrapy = kinds.add_parser("scrapy", help="a spider of a Scrapy project")
    scrapy.add_argument("--project", required=True, metavar="DIR")
    scrapy.add_argument("--spider", required=True, metavar="NAME")
    command = kinds.add_parser("command", help="any other program")
    command.add_argument("--project", metavar="DIR", help="the folder it starts in")
    command.add_argument("argv", nargs=argparse.REMAINDER)
    return parser.parse_args(argv)


def _run(argv: list[str]) -> int:
    try:
        chosen = _parse(argv)
    except SystemExit as leaving:
        return contract.BAD_CONFIGURATION if leaving.code else 0
    scrapy = chosen.kind == "scrapy"
    try:
        terms = contract.Contract.read(os.environ)
        if terms.upload_token:
            hide_environment()
        try:
            if chosen.project is not None:
                os.chdir(chosen.project)
        except OSError as error:
            raise contract.BadConfiguration(f"the project folder cannot be used: {error}") from None
        command = _scrapy_command(chosen) if scrapy else chosen.argv
        if command[:1] == ["--"]:
            command = command[1:]
        if not command:
            raise contract.BadConfiguration("no command given")
        return Runner(terms, scrapy=scrapy).run(command)
    except contract.BadConfiguration as error:
        return _refuse(str(error))


def _scrapy_command(chosen: argparse.Namespace) -> list[str]:
    if not os.path.isfile("scrapy.cfg") and not os.environ.get("SCRAPY_SETTINGS_MODULE"):
        raise contract.BadConfiguration(f"{chosen.project} holds no scrapy.cfg, so it is no Scrapy project")
    inject = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [inject, os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-u", os.path.join(inject, "crawl_runner_boot.py"), chosen.spider]


def main(argv: list[str]) -> None:
    """Run and exit."""
    block_signals()
    become_subreaper()
    with contextlib.suppress(KeyError, ValueError, OSError):  # the slot of the local cluster, which no crawler holds
        os.set_inheritable(int(os.environ["CRAWL_SLOT_FD"]), False)
    try:
        code = _run(argv)
    except OSError as error:
        say(f"The runner failed: {error}")
        code = contract.DISK_FULL if error.errno == 28 else contract.FAILED
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)

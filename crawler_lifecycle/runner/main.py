"""The runner's command line. The runner starts one crawler, forwards one stop request to it, and
reports how it ended.

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
from collections.abc import MutableMapping
from typing import Any

from . import VERSION, contract
from .changes import changed_since
from .child import Child, ChildEnd, become_subreaper, block_signals, hide_environment
from .code import CodeUnavailable, fetch_code
from .crawlee import Crawlee
from .feeds import Feeds
from .forced import ForcedStop
from .item_files import DECLARED, declared_in
from .item_reader import Keys
from .log import CappedLog
from .memory import cgroup_limit
from .reported import blocks
from .signs import Signs
from .state import ANEW, NO_STATE, NOT_ASKED, UNKNOWN, WENT_ON, FeedCounts, JobState, KeptKeys
from .upload import INTERRUPTED, Upload
from .verdict import BEFORE_START, Evidence, exit_of

TICK_SECONDS = 1.0
PROGRESS_SECONDS = 30.0
#: Seconds after which the log reports a new refused request, at the latest.
BLOCK_SECONDS = 5.0
#: The service stops a run at its deadline. In case the service is down, the runner stops the run
#: this many seconds after the deadline.
DEADLINE_GRACE_SECONDS = 60.0
TIMED_OUT = "timed_out"
#: Seconds for the upload if the crawler ended without a stop request. After a stop request, the
#: rest of the grace period is the limit.
UPLOAD_SECONDS = 900.0
#: Seconds for reading item fields from the feeds after the crawler has ended.
FEEDS_SECONDS = 60.0
#: The maximum number of characters about unreadable items, as in ``domain/coverage.py``.
NOTE_MAX = 500
#: The maximum number of characters about code that is awaited, as in ``domain/bounds.py``.
CODE_WAIT_MAX = 200
#: The maximum number of seconds of the grace period that we reserve for ending the runner itself.
MARGIN_SECONDS = 2.0
_POLL_SECONDS = 0.1
#: Variables that are only for the runner; the crawler does not get them.
_OURS = (
    "CRAWL_UPLOAD_URL",
    "CRAWL_UPLOAD_TOKEN",
    "CRAWL_LOG_FILE",
    "CRAWL_SLOT_FD",
    "CRAWL_FIELDS",
    "CRAWL_CODE_URL",
    "CRAWL_CODE_TOKEN",
    "CRAWL_CODE_CACHE",
)
#: The folder of the modules that a crawler can import.
_INJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
#: Seconds between two counts of the feeds, for the last count, and for the last count after a stop
#: request.
FEED_SECONDS = 5.0
FEED_END_SECONDS = 10.0
FEED_STOP_SECONDS = 2.0
#: If fewer bytes than this are free on the disk, a failure is attributed to a full disk.
DISK_RESERVE = 64 * 1024


class Runner:
    """One crawler from its start to the summary."""

    def __init__(self, terms: contract.Contract, *, scrapy: bool) -> None:
        self._terms = terms
        self._scrapy = scrapy
        self._state = JobState(terms.state_dir) if scrapy and terms.state_dir else None
        self._counts = (
            FeedCounts(terms.state_dir, resume=terms.resume)
            if terms.state_dir and not scrapy
            else None
        )
        # The crawler writes to a separate file, from which we copy only valid content, so that
        # readers see no invalid stats.
        self._scratch = None if terms.stats_file else _scratch(terms)
        self._child_stats = (
            f"{terms.stats_file or os.path.join(str(self._scratch), 'stats.json')}.crawler"
        )
        self._crawlee: Crawlee | None = None
        self._started_at = time.time()
        self._resumed = False
        self._resumption: contract.Json = {}
        self._warned = False
        self._blocked: list[contract.Json] = []
        self._said_blocked = False
        self._stats: dict[str, Any] = {}
        self._reported: contract.Json = {}
        """The last valid stats from the crawler itself."""
        self._feeds: Feeds | None = None
        self._by_key = any(declared.key for declared in declared_in(terms.items.encode()))
        """True if items with the same key count once. If so, the runner counts the items in the
        feeds, and ignores the crawler's own count.
        """
        self._keys = KeptKeys(terms.state_dir) if self._by_key and terms.state_dir else None
        if terms.files_dir and terms.items != "off":
            self._feeds = Feeds(
                terms.files_dir, terms.fields, self._keys.begin if self._keys else Keys
            )
        if terms.files_dir and terms.items.startswith("{"):
            contract.write(os.path.join(terms.files_dir, DECLARED), f"{terms.items}\n")
        self._feeds_due = time.monotonic() + FEED_SECONDS
        self._signs = Signs()
        self._wrote_at: str | None = None
        self._stats_raw: contract.Json | None = None
        self._began = False
        self._message: str | None = None
        self._own_exit: int | None = None
        """The exit code of a program that could not be executed, as a shell would report it."""
        self._statistics: contract.Json = {}
        self._progress_due = time.monotonic() + PROGRESS_SECONDS
        # From here on, use the monotonic clock, because the wall clock may be changed.
        left = (
            None
            if terms.deadline is None
            else max(0.0, terms.deadline - time.time() + DEADLINE_GRACE_SECONDS)
        )
        self._backstop = None if left is None else time.monotonic() + left
        self._kill_at: float | None = None
        self._timed_out = False
        self._killed_late = False
        self._forced: ForcedStop | None = None

    def run(self, argv: list[str]) -> int:
        """Run the crawler, and return the runner's exit code."""
        child = Child(self._terms.stop_signal)
        env = self._environment()
        with contextlib.suppress(OSError):
            os.unlink(self._child_stats)
        if self._state is not None:
            self._open_state(env)
        elif self._terms.attempt > 1:
            asked = UNKNOWN if self._terms.state_dir else NO_STATE
            self._note_resumption(asked if self._terms.resume else NOT_ASKED)
        self._begin_keys(resume=self._resumed if self._scrapy else self._terms.resume)
        if child.pending_stop():
            say("A stop was requested before the crawler started.")
            return self._finish(ChildEnd(None, None, 0), child)
        log = self._log()
        try:
            child.start(argv, env, log.inlet if log is not None else None)
        except OSError as error:
            self._message = f"The crawler cannot be executed: {error}"
            say(self._message)
            self._own_exit = contract.NOT_EXECUTED
            return self._finish(ChildEnd(contract.BAD_CONFIGURATION, None, 0), child)

        if log is not None:
            log.handed_over()

        def tick() -> None:
            self._keep_deadline(child)
            self._tick()

        ended = child.wait(tick, TICK_SECONDS)
        if log is not None:
            log.finish()
        return self._finish(ended, child)

    def _begin_keys(self, *, resume: bool) -> None:
        """Restart the count, with the keys from earlier attempts if this attempt continues them."""
        if self._keys is not None and self._feeds is not None:
            self._keys.load(resume=resume)
            self._feeds.begin()

    def _log(self) -> CappedLog | None:
        """Return the log with a size limit; ``None`` when no log file is set, or when the file
        cannot be opened.
        """
        if self._terms.log_file:
            try:
                return CappedLog(self._terms.log_file)
            except (OSError, RuntimeError) as error:
                say(f"The size of the log cannot be limited: {error}")
        return None

    def _environment(self) -> dict[str, str]:
        """Return the crawler's environment: ours, excluding the runner's variables, plus values
        that we computed.
        """
        env = {name: value for name, value in os.environ.items() if name not in _OURS}
        env["CRAWL_STATS_FILE"] = self._child_stats
        if self._terms.deadline is not None:
            env["CRAWL_DEADLINE"] = contract.moment(self._terms.deadline)
        if self._terms.memory_limit is None and (limit := cgroup_limit()) is not None:
            env["CRAWL_MEMORY_LIMIT"] = str(limit)
        if self._terms.state_dir and not self._scrapy:
            self._crawlee = Crawlee(env, self._terms.state_dir, resume=self._terms.resume)
        if env.get("CRAWL_LEASES_URL") and not self._scrapy:
            # So that a program in Python can import what asks for leases.
            _add_modules(env)
        return env

    def _open_state(self, env: dict[str, str]) -> None:
        assert self._state is not None
        self._resumed, note = self._state.open(self._terms.resume)
        self._stats = self._state.with_earlier({})
        if self._terms.attempt > 1:
            self._note_resumption(note)
            say(f"{note}.")
        env["CRAWL_JOB_DIR"] = self._state.folder
        env["CRAWL_RESUME"] = "1" if self._resumed else "0"

    def _note_resumption(self, note: str) -> None:
        """Report whether this attempt continues the earlier one, in the stats and on standard
        output.
        """
        self._resumption = {"resume_note": note}
        if note != UNKNOWN:
            self._resumption["resumed"] = self._resumed
        self._write_stats(self._stats)
        self._print_progress()

    # --- while it runs

    def _tick(self) -> None:
        self._read_stats()
        self._count_feeds()
        if self._signs.check():
            self._wrote_at = contract.now()
            self._write_stats(self._stats)
        if time.monotonic() >= self._progress_due:
            self._progress_due = time.monotonic() + PROGRESS_SECONDS
            self._print_progress()

    def _keep_deadline(self, child: Child) -> None:
        now = time.monotonic()
        # The sender of the stop request may kill the runner together with the crawler. So the
        # runner must kill the crawler first.
        over = self._grace_over(child)
        if over is not None:
            self._kill_at = over if self._kill_at is None else min(self._kill_at, over)
        if self._kill_at is not None:
            if now >= self._kill_at and not self._killed_late:
                self._killed_late = True
                why = self._why_killed(child)
                self._message = self._message or why
                say(f"{why}.")
                child.kill()
        elif self._backstop is not None and now >= self._backstop and not child.stop_asked:
            self._timed_out = True
            self._kill_at = now + self._terms.stop_grace_s
            self._message = (
                f"The runner stopped it: it was still running {DEADLINE_GRACE_SECONDS:g} s "
                "after its deadline"
            )
            say(self._message)
            child.stop()

    def _grace_over(self, child: Child) -> float | None:
        """Return the time when a stopped crawler's grace period ends, by the monotonic clock.

        A forced stop ends the grace period at once.

        Return ``None`` if no stop was requested, or if the runner does not enforce the grace
        period.
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
        grace_s = self._terms.stop_grace_s
        return f"It was still running {grace_s:g} s after the stop signal and was killed"

    def _read_stats(self) -> None:
        """Copy the crawler's stats if they are new and valid."""
        raw = contract.read(self._child_stats) or (self._crawlee.read() if self._crawlee else None)
        if raw is None or raw == self._stats_raw:
            return
        self._stats_raw = raw
        fresh = contract.valid_stats(raw)
        saved = fresh.pop("saved", None)
        if self._state is not None and "finish_reason" in fresh:
            self._state.saved = saved
        self._message = fresh.pop("message", self._message)
        self._statistics = fresh.pop("scrapystats", self._statistics)
        self._keep_blocks(raw, fresh)
        resumed = fresh.pop("resumed", None)
        # For Scrapy, the runner itself determines whether the crawl was resumed.
        if resumed is not None and self._resumption and self._state is None:
            if not resumed and self._resumption.get("resumed") is not False:
                self._begin_keys(resume=False)
            self._resumption = {"resumed": resumed, "resume_note": WENT_ON if resumed else ANEW}
        if fresh:
            fresh.setdefault("updated_at", contract.now())
            self._began = True
            self._reported = fresh
            self._combine()

    def _keep_blocks(self, raw: contract.Json, fresh: contract.Json) -> None:
        """Add the new refused requests to those reported before, because the crawler may replace
        them before anyone reads them.
        """
        new = [block for block in fresh.get("blocked", []) if block not in self._blocked]
        if new:
            self._blocked = blocks([*self._blocked, *new])
            self._progress_due = min(self._progress_due, time.monotonic() + BLOCK_SECONDS)
        elif raw.get("blocked") and "blocked" not in fresh and not self._said_blocked:
            self._said_blocked = True
            say("blocked in the stats file is ignored: it needs at least a host")
        if self._blocked:
            fresh["blocked"] = self._blocked

    def _combine(self) -> None:
        """Use the crawler's own counters if there are any, or else those from its feeds. Add the
        counters from earlier attempts.
        """
        counted: contract.Json = {}
        if self._feeds is not None and self._feeds.items is not None:
            counted = {"items": self._feeds.items, "bytes": self._feeds.bytes}
            if self._counts is not None:
                counted = self._counts.with_earlier(
                    counted, anew=self._resumption.get("resumed") is False
                )
        own = {
            name: value
            for name, value in self._reported.items()
            if name != "items" or not self._by_key
        }
        stats = {**counted, **own}
        self._stats = stats if self._state is None else self._state.with_earlier(stats)
        self._write_stats(self._stats)

    def _count_feeds(self, final_s: float | None = None) -> None:
        """Count the new data in the feeds if the next count is due. After the crawler has ended,
        count all data within ``final_s`` seconds.
        """
        now = time.monotonic()
        own = self._reported.keys() >= {"items", "bytes"} and not self._by_key
        if self._feeds is None or own or (final_s is None and now < self._feeds_due):
            return
        before = self._feeds.items, self._feeds.bytes
        more = self._feeds.read_on()
        if final_s is not None:
            while more and time.monotonic() < now + final_s:
                more = self._feeds.read_on()
            if more:
                say(
                    f"There was no time to count all items. Only the first {self._feeds.bytes} "
                    "bytes were counted."
                )
            else:
                self._feeds.finish()
        self._feeds_due = time.monotonic() + (TICK_SECONDS if more else FEED_SECONDS)
        if self._keys is not None:
            self._keys.save()
        if (self._feeds.items, self._feeds.bytes) != before:
            self._reported["updated_at"] = contract.now()
            self._combine()

    def _write_stats(self, data: contract.Json) -> None:
        if self._terms.stats_file:
            try:
                signs = {"wrote_at": self._wrote_at} if self._wrote_at else {}
                contract.write(
                    self._terms.stats_file, json.dumps({**data, **self._resumption, **signs})
                )
            except OSError as error:
                if not self._warned:  # report this error once, not every second
                    say(f"The stats file {self._terms.stats_file} cannot be written: {error}")
                self._warned = True

    def _print_progress(self, more: contract.Json | None = None) -> None:
        quiet = self._signs.quiet_s()
        signs = {} if quiet is None else {"quiet_s": quiet}
        _print({"crawl_progress": {**self._stats, **self._resumption, **signs, **(more or {})}})

    # --- the end

    def _finish(self, ended: ChildEnd, child: Child) -> int:
        self._read_stats()
        self._count_feeds(FEED_STOP_SECONDS if child.stop_asked else FEED_END_SECONDS)
        if self._state is not None:
            self._statistics = self._state.with_statistics(self._statistics)
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
            # The service reports the same reason when it stops a run because of this time limit.
            code = contract.FAILED
            reason = TIMED_OUT
        finish = {"finish_reason": reason, "finished_at": contract.now(), "resumable": resumable}
        statistics = {"scrapystats": self._statistics} if self._statistics else {}
        if self._stats or statistics:
            self._write_stats({**self._stats, **finish, **statistics})
        # If there is a log file, readers also have the stats file.
        if statistics and not self._terms.log_file:
            _print({"crawl_stats": self._statistics})
        self._print_progress(finish)
        summary = {
            "runner": VERSION,
            "exit": code,
            **finish,
            # Check this before the upload: a stop during the upload does not count.
            "told_to_stop": evidence.stop_asked,
            "exit_code": ended.exit_code,
            # This is not an exit code of Scrapy itself.
            "own_exit": None if self._scrapy else self._own_exit or ended.exit_code,
            "signal": ended.signal,
            **contract.picked(self._stats, (*contract.COUNTERS, "blocked")),
            **self._resumption,
            "peak_memory": ended.peak_memory or None,
            "started_at": contract.moment(self._started_at),
            "message": self._message[:1000] if self._message else None,
        }
        # This summary remains if we are killed in the next steps.
        write_summary(self._terms.summary_file, summary)
        not_kept = self._not_kept()
        if self._feeds is not None:
            summary["fields"] = self._fields(child, self._feeds, not_kept)
        if self._terms.upload_url and self._terms.files_dir:
            # This summary remains if we are killed during the upload.
            write_summary(
                self._terms.summary_file,
                {**summary, "files": {"uploaded": False, "why": INTERRUPTED}},
            )
            summary["files"] = self._upload(child)
        write_summary(self._terms.summary_file, summary)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return code

    def _not_kept(self) -> list[str]:
        """Return a list with one sentence about files that the crawl wrote below its working
        folder, and log the sentence. If there are no such files, the list is empty.
        """
        kept = [
            os.path.realpath(folder)
            for folder in (self._terms.files_dir, self._terms.state_dir)
            if folder
        ]
        folders = changed_since(self._started_at, kept) if self._terms.files_dir else None
        if not folders:
            return []
        where = os.path.commonpath(folders) or "."
        words = f"{sum(folders.values())} files in {where!r:.200} {contract.NOT_KEPT}"
        say(words)
        return [words]

    def _fields(self, child: Child, feeds: Feeds, not_kept: list[str]) -> contract.Json | None:
        """Return the number of items, the share with a value in each field, and a note about data
        that could not be read or is not kept.

        Return ``None`` if there are neither items nor a note, if a stop is requested in the
        meantime, or when the time limit is reached.
        """
        stopped = child.stop_asked
        until = time.monotonic() + (FEED_STOP_SECONDS if stopped else FEEDS_SECONDS)
        while child.pending_stop() == stopped and time.monotonic() < until:
            if not feeds.read_on():
                feeds.finish()
                found: contract.Json = {"items": feeds.items or 0, "shares": feeds.fields()}
                note = self._difference(feeds, not_kept)
                if note:
                    found["note"] = note
                return found if note or feeds.seen else None
        return None

    def _difference(self, feeds: Feeds, not_kept: list[str]) -> str:
        """Return sentences about items that the crawler counted or wrote to files, but that cannot
        be read.
        """
        counted = self._reported.get("items")
        items = 0 if feeds.read is None and self._by_key else feeds.read
        # After a resume, a command continues its own count, but its feeds start from zero.
        differs = (
            items is not None
            and counted not in (None, items)
            and (self._scrapy or self._terms.attempt == 1)
        )
        told = [f"{counted:,} items were counted, {items:,} can be read"] if differs else []
        return "; ".join(told + not_kept + feeds.skipped())[:NOTE_MAX]

    def _upload(self, child: Child) -> contract.Json:
        """Upload the supporting files to object storage until the time limit is reached, and return
        the result.
        """
        assert self._terms.files_dir
        assert self._terms.upload_url
        child.end_leftovers()
        upload = Upload(
            self._terms.files_dir, self._terms.upload_url, self._terms.upload_token or ""
        )
        upload.start(time.monotonic() + UPLOAD_SECONDS)

        def over() -> bool:
            if child.stopped_at is not None:
                end_grace_s = self._terms.end_grace_s or 0.0
                grace_over = self._grace_over(child) or child.stopped_at + self._terms.stop_grace_s
                upload.hurry(grace_over + end_grace_s - min(MARGIN_SECONDS, end_grace_s / 5))
            return upload.over() or upload.late()

        child.attend(over, _POLL_SECONDS)
        result: contract.Json = upload.result()
        if result["uploaded"]:
            say(
                f"The supporting files were uploaded: {result['files']} files, "
                f"{result['bytes']} bytes."
            )
        else:
            say(f"The supporting files were not uploaded: {result['why']}")
        return result

    def _resumable(self, reason: str | None) -> bool:
        """Return whether the crawl can be resumed. If so, write the marker for the next attempt."""
        if self._state is None:
            return bool(self._stats.get("resumable", False))
        # A resumed crawl that was stopped before it began has not changed the state of the earlier
        # clean stop.
        if reason != "shutdown" and not (reason == BEFORE_START and self._resumed):
            return False
        counted = contract.picked(self._stats, contract.COUNTERS)
        try:
            self._state.mark_clean({**counted, "scrapystats": self._statistics})
        except OSError as error:
            say(
                "The crawl cannot be resumed, because the marker of its state cannot be written: "
                f"{error}"
            )
            return False
        return self._state.saved is not False

    def _disk_full(self) -> bool:
        for folder in filter(None, (self._terms.files_dir, self._terms.state_dir)):
            with contextlib.suppress(OSError):
                disk = os.statvfs(folder)
                if disk.f_bavail * disk.f_frsize < DISK_RESERVE:
                    return True
        return False


def _scratch(terms: contract.Contract) -> str:
    """Create a folder for the crawler's stats if no stats file is set.

    Raises ``BadConfiguration``.
    """
    for parent in (None, terms.state_dir, terms.files_dir):
        with contextlib.suppress(OSError):
            return tempfile.mkdtemp(prefix=".crawl-" if parent else "crawl-", dir=parent)
    raise contract.BadConfiguration(
        "CRAWL_STATS_FILE is not set, and no temporary folder can be written; set it"
    )


def _print(line: contract.Json) -> None:
    """Print one line of JSON to standard output, for the readers of the log."""
    with contextlib.suppress(OSError):  # the reader closed the pipe, or the disk is full
        os.write(1, f"{json.dumps(line)}\n".encode())


def say(text: str) -> None:
    """Write a human-readable line to the crawler's log. Errors are ignored."""
    with contextlib.suppress(OSError):
        print(f"[runner] {text}", file=sys.stderr, flush=True)


def write_summary(path: str | None, summary: contract.Json) -> None:
    """Write the summary, at most 4 KiB, unless ``path`` is empty.

    If the summary cannot be written, log the error.
    """
    if not path:
        return
    try:
        contract.write(
            path, contract.summary_text({k: v for k, v in summary.items() if v is not None})
        )
    except (OSError, ValueError) as error:
        say(f"The summary file {path} cannot be written: {error}")


def _refuse(text: str, code: int) -> int:
    """Write the summary of a task without a crawl, and return the exit code."""
    summary = {
        "runner": VERSION,
        "exit": code,
        "message": text[:1000],
        "finished_at": contract.now(),
    }
    write_summary(os.environ.get("CRAWL_SUMMARY_FILE"), {**summary, "resumable": False})
    return code


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="runner", description="Run a crawler and report its outcome."
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    scrapy = kinds.add_parser("scrapy", help="a spider of a Scrapy project")
    scrapy.add_argument("--project", required=True, metavar="DIR")
    scrapy.add_argument("--spider", required=True, metavar="NAME")
    command = kinds.add_parser("command", help="any other program")
    command.add_argument("--project", metavar="DIR", help="the folder in which it starts")
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
        if terms.upload_token or os.environ.get("CRAWL_CODE_TOKEN"):
            hide_environment()
        if os.environ.get("CRAWL_CODE_DIGEST") and not _enter_code(terms.stats_file):
            return Runner(terms, scrapy=scrapy).run([])  # it was stopped, so nothing is executed
        try:
            if chosen.project is not None:
                os.chdir(chosen.project)
        except OSError as error:
            raise contract.BadConfiguration(
                f"--project: {chosen.project} cannot be used: {error}"
            ) from None
        command = _scrapy_command(chosen) if scrapy else chosen.argv
        if command[:1] == ["--"]:
            command = command[1:]
        proxied = contract.behind_proxy(command)
        if proxied:
            command = command[len(contract.PROXY) :]
        if not command:
            raise contract.BadConfiguration("no command is given; write it after --")
        if proxied:
            script = os.path.join(_INJECT, "crawl_runner_proxy.py")
            command = [sys.executable, script, "--", *command]
        return Runner(terms, scrapy=scrapy).run(command)
    except contract.BadConfiguration as error:
        say(f"Bad configuration: {error}")
        return _refuse(str(error), contract.BAD_CONFIGURATION)
    except CodeUnavailable as error:
        say(str(error))
        return _refuse(str(error), error.exit_code)


class CodeWait:
    """The reason for which the task waits for its code, in the stats and on standard output."""

    def __init__(self, stats_file: str | None) -> None:
        self._stats_file = stats_file
        self._why = ""

    def report(self, why: str) -> None:
        """Report the reason if it is new; an empty string ends the wait."""
        if why == self._why:
            return
        self._why = why
        if why:
            say(f"The task is waiting for its code: {why}")
        state = {"code_wait": why[:CODE_WAIT_MAX]} if why else {}
        _print({"crawl_progress": state})
        with contextlib.suppress(OSError):  # the log has the reason
            if self._stats_file:
                contract.write(self._stats_file, json.dumps(state))


def _enter_code(stats_file: str | None) -> bool:
    """Fetch the code and make its folder the working folder. Return ``False`` after a stop.

    Raises ``BadConfiguration`` and ``CodeUnavailable``.
    """
    wait = CodeWait(stats_file)
    folder = fetch_code(os.environ, wait.report)
    wait.report("")
    if folder is not None:
        os.chdir(folder)
    return folder is not None


def _add_modules(env: MutableMapping[str, str]) -> None:
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [_INJECT, env.get("PYTHONPATH")]))


def _scrapy_command(chosen: argparse.Namespace) -> list[str]:
    if not os.path.isfile("scrapy.cfg") and not os.environ.get("SCRAPY_SETTINGS_MODULE"):
        raise contract.BadConfiguration(
            f"--project: {chosen.project} has no scrapy.cfg; name a Scrapy project"
        )
    _add_modules(os.environ)
    # scrapyd sets these variables, too. Scrapy's own name for the default project is "default",
    # too.
    job = os.environ.get("CRAWL_REQUEST_ID") or os.environ.get("CRAWL_RUN_ID", "")
    for name, value in (("PROJECT", "default"), ("SPIDER", chosen.spider), ("JOB", job)):
        os.environ.setdefault(f"SCRAPY_{name}", value)
    return [sys.executable, "-u", os.path.join(_INJECT, "crawl_runner_boot.py"), chosen.spider]


def main(argv: list[str]) -> None:
    """Run the crawler, and exit with the runner's code."""
    block_signals()
    become_subreaper()
    # The crawler must not keep the slot of the local cluster.
    with contextlib.suppress(KeyError, ValueError, OSError):
        os.set_inheritable(int(os.environ["CRAWL_SLOT_FD"]), False)
    try:
        code = _run(argv)
    except OSError as error:
        say(f"The runner failed: {error}")
        code = contract.DISK_FULL if error.errno == 28 else contract.FAILED
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)

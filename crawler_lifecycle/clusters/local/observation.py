"""An observation of a task, from its folder and /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from crawler_lifecycle.clusters.local.folders.limits import KILLED, failed_at_limit
from crawler_lifecycle.clusters.local.folders.reader import FileReport, TaskFolder
from crawler_lifecycle.clusters.local.processes.identity import members
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.task import End, Observation, Phase, told_exit

from .folders import folder as files

#: Seconds in which a living supervisor writes the end after its crawler died. After this time, it
#: is considered hanging.
END_SECONDS = 1.0
#: The supervisor may be dead, or slow. In the latter case, it writes its record later, with more
#: facts.
NOT_WRITTEN = "Its supervisor had not written the end"
ONLY_SUMMARY = "; this is the runner's own summary"


class Reading:
    """An observation of a folder. The methods raise ``OSError``."""

    def __init__(self, folder: TaskFolder, now: datetime, node: str) -> None:
        self._folder = folder
        self._now = now
        self._node = node
        self._seen = partial(Observation, folder.task.index, folder.task.attempt, observed_at=now)

    def observe(self) -> Observation:
        """Return the observation of the task. Raises ``OSError`` if a part cannot be read."""
        if self._folder.exists():
            seen = self._named(self._within_folder())
            if seen.name is not None:
                return seen
        # The folder is missing, or was removed while it was being read. In the second case, missing
        # files prove nothing.
        return self._named(self._without_folder())

    def _named(self, seen: Observation) -> Observation:
        """Add the name, the uid, whether the task resumed, and the problems of ignored files."""
        started = seen.started_at is not None
        record = (self._folder.read(files.PROCESS).data or self._beside()) if started else {}
        final = seen.end is not None
        resumed, note = self._resumption(final=final) if started else (None, None)
        uid = self._folder.uid()
        reason = self._message(seen.reason)
        there = self._folder.exists()  # checked last: see ``observe``
        name = self._folder.name if there else None
        return replace(
            seen,
            name=name,
            uid=uid if there else None,
            reason=reason,
            resumed=resumed,
            resume_note=note,
            code=Code.of(record.get("code")),
        )

    def _within_folder(self) -> Observation:
        if self._folder.has_ended():
            return self._ended()
        # Read this before searching for processes, because a task that begins meanwhile must not
        # count as gone.
        began = self._folder.has(files.SUPERVISOR) or self._folder.has(files.PROCESS)
        if self._folder.supervisor_alive():
            # The crawler may execute although ``process.json`` is missing.
            executes = self._folder.has(files.PROCESS) or (
                self._beside() and members(None, self._folder.marks())
            )
            return self._without_end(supervised=True) if executes else self._waiting()
        if self._folder.has_ended():  # the supervisor wrote the end and ended meanwhile
            return self._ended()
        if not began and self._folder.task.uid is not None:
            return self._without_folder()  # the task had a supervisor, so this is another folder
        if not began:
            reason = (
                "deployed, but its supervisor has not started"
                if self._folder.has(files.SPEC)
                else None
            )
            return self._seen(Phase.ABSENT, reason=reason)
        return self._without_end(supervised=False)

    def _without_folder(self) -> Observation:
        """Observe a task without a folder. Such a task was never deployed or, if it has a recorded
        uid, its folder was removed.
        """
        if self._folder.task.uid is None:
            return self._seen(Phase.ABSENT)
        supervisors, crawlers = self._folder.named()
        phase = Phase.EXECUTING if crawlers else Phase.WAITING if supervisors else Phase.GONE
        report = self._beside() if phase is Phase.GONE else {}
        if report.get("uid") != self._folder.task.uid:
            report = {}
        started = self._folder.report(files.STARTED, report).time("started_at")
        if report.get("finished_at"):
            return replace(self._ended(report), started_at=started)
        return self._seen(
            phase, node=self._node, reason="its folder was removed", started_at=started
        )

    def _beside(self) -> files.Record:
        return files.reported_beside(str(self._folder.path.parents[3]), self._folder.name)

    def _end_appears(self) -> bool:
        """Wait until a living supervisor has written the end, and return whether it did."""
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until and not self._folder.has_ended():
            time.sleep(0.02)
        return self._folder.has_ended()

    def _waiting(self) -> Observation:
        waiting = self._folder.read(files.WAITING)
        since = self._folder.read(files.SUPERVISOR).time("since")
        reason = waiting.text("reason") or "starting"
        return self._seen(Phase.WAITING, reason=reason, changed_at=since)

    def _without_end(self, *, supervised: bool) -> Observation:
        """Observe a task without a recorded end, by the crawler's processes and then by the
        runner's summary.
        """
        leader = self._folder.identity(files.PROCESS)
        stat = leader.stat() if leader is not None else None
        if leader is not None and not supervised and not self._folder.has(files.STOP):
            # The crawler may have suspended the runner. A kill also suspends the runner, so this
            # check is skipped after a kill.
            leader.send(signal.SIGCONT)
        alone = None if supervised else "its supervisor is dead"
        if (stat is not None and not stat.ended) or self._folder.processes(leader):
            return self._executing(alone)
        if self._folder.has_ended() or (supervised and leader is not None and self._end_appears()):
            return self._ended()
        if self._folder.has(files.SUMMARY):
            summary = self._folder.read(files.SUMMARY)
            if summary.data or not supervised:
                return self._ended_by_summary(summary)
        status = stat.exit_status if stat is not None else 0
        oom = self._oom() if status or not supervised else None
        if status or oom:
            # A zombie has an exit status. A status of 0 proves nothing, because the kernel also
            # returns 0 to a process without the permission to read it.
            code = os.waitstatus_to_exitcode(status) if status else -signal.SIGKILL
            end = End(
                exit_code=code if code >= 0 else 128 - code,
                signal=-code if code < 0 else None,
                reason="OOMKilled" if oom else "Error",
                message=self._message(
                    f"{NOT_WRITTEN}{f'. {oom}' if oom else '; the kernel reports this end'}"
                ),
                memory_limit=self._memory_limit(),
            )
            return self._with_end(end)
        if supervised:
            # Garbage in process.json hides the crawler, or the supervisor cannot write the end yet
            # because the disk is full.
            return self._executing("its supervisor has not written the end yet")
        if self._folder.incidents:
            message = self._message(
                "None of its processes is running any more, and its evidence cannot be read"
            )
            return self._with_end(End(reason="Error", message=message))
        return self._seen(Phase.GONE, node=self._node, reason=alone, started_at=self._started())

    def _executing(self, reason: str | None) -> Observation:
        counters, progress = self._folder.counters()
        started = self._started()
        return self._seen(
            Phase.EXECUTING,
            node=self._node,
            reason=reason,
            changed_at=started,
            started_at=started,
            counters=counters,
            progress_at=progress,
            quiet=self._quiet(),
            blocked=self._folder.blocked(),
            code_wait=self._folder.read(files.STATS).text("code_wait"),
        )

    def _quiet(self) -> timedelta | None:
        """Return the time since the crawler's last write; ``None`` if no runner is alive.

        The runner recorded the time of the write by the clock of this machine.
        """
        leader = self._folder.identity(files.PROCESS)
        wrote_at = self._folder.read(files.STATS).time("wrote_at")
        if wrote_at is None or leader is None or not leader.alive():
            return None
        return max(self._now - wrote_at, timedelta(0))

    def _ended(self, report: files.Record | None = None, source: str = files.END) -> Observation:
        """Return the observation of an end, from ``report`` or else from the supervisor's record in
        the folder.

        ``source`` is the file that contains the data, for messages about problems.
        """
        folder = self._folder
        data = folder.report(source, report) if report else folder.read(files.END)
        summary = folder.read(files.SUMMARY)
        code = data.count("exit_code", bounds.exit_code)
        number = data.count("signal", bounds.exit_signal)
        finish = summary.text("finish_reason")
        own = summary.count("exit", bounds.exit_code)
        reason = data.text("reason") or "Error"
        if (
            source == files.END
            and number == 9
            and finish is not None
            and own is not None
            and reason == "Error"
        ):
            # The runner was killed between its summary and its exit. The summary is the better
            # evidence.
            code = own
            number = None
            reason = "Error" if own else "Completed"
        told = summary.typed("told_to_stop", bool) is True
        crawlers = summary.count("own_exit", bounds.exit_code)
        code, verdict = told_exit(code, own, crawlers, told)
        end = End(
            exit_code=code,
            verdict=verdict,
            told=told,
            signal=number,
            reason=reason,
            message=self._message(data.text("message") or summary.text("message")),
            finished_at=data.time("finished_at") or folder.modified(source),
            finish_reason=finish,
            memory_limit=self._memory_limit(),
        )
        return self._with_end(end)

    def _ended_by_summary(self, summary: FileReport) -> Observation:
        code = summary.count("exit", bounds.exit_code)
        number = summary.count("signal", bounds.exit_signal)
        oom = None if code == 0 else self._oom() or self._failed_at_limit(summary)
        report = {
            "exit_code": code,
            "signal": number if number is not None and code == 128 + number else None,
            "reason": "Completed" if code == 0 else "OOMKilled" if oom else "Error",
            "message": f"{NOT_WRITTEN}{f'. {oom}' if oom else ONLY_SUMMARY}",
            "finished_at": summary.data.get("finished_at"),
        }
        return self._ended(report, files.SUMMARY)

    def _with_end(self, end: End) -> Observation:
        counters, progress = self._folder.counters(final=True)
        return self._seen(
            Phase.ENDED,
            node=self._node,
            changed_at=end.finished_at,
            started_at=self._started(),
            counters=counters,
            progress_at=progress,
            peak_memory=self._folder.peak_memory(),
            blocked=self._folder.blocked(),
            fields=Coverage.of(self._folder.read(files.SUMMARY).data.get("fields")),
            end=end,
        )

    def _started(self) -> datetime | None:
        return self._folder.read(files.PROCESS).time("started_at")

    def _memory_limit(self) -> str | None:
        return self._folder.read(files.SPEC).text("memory_text")

    def _oom(self) -> str | None:
        """Return a sentence about a kill because of the memory limit; ``None`` if there was no such
        kill.

        Raises ``OSError``.
        """
        kills = 0
        group = self._folder.group()
        with contextlib.suppress(FileNotFoundError):  # the group was removed meanwhile
            kills = group.oom_kills() if group is not None else 0
        # Read the file last, because another poll writes it before it removes the group.
        if self._folder.has(files.OOM):
            return self._folder.read(files.OOM).text("message") or KILLED
        return KILLED if kills else None

    def _failed_at_limit(self, summary: FileReport) -> str | None:
        """Return a sentence if the crawler failed without giving a reason after it had used all its
        memory; otherwise ``None``.

        If there is a kernel limit, this is always ``None``, because the kernel kills such a
        crawler.
        """
        if self._folder.has(files.CGROUP):
            return None
        limit = self._folder.read(files.SPEC).count("memory_limit")
        return failed_at_limit(
            self._folder.peak_memory(), limit or None, summary.data.get("finish_reason") or None
        )

    def _resumption(self, *, final: bool) -> tuple[bool | None, str | None]:
        """Return whether the crawler resumed, and the note about this, as reported by the runner.

        First attempts have neither.
        """
        if self._folder.task.attempt == 1:
            return None, None
        name = files.SUMMARY if final and self._folder.has(files.SUMMARY) else files.STATS
        said = self._folder.read(name)
        note = said.text("resume_note")
        resumed = said.typed("resumed", bool)
        return (resumed if isinstance(resumed, bool) else None), bounds.words(note, bounds.NOTE_MAX)

    def _message(self, text: str | None) -> str | None:
        parts = [text] if text else []
        parts += [f"ignored: {incident}" for incident in self._folder.incidents]
        return "; ".join(parts)[:2000] or None

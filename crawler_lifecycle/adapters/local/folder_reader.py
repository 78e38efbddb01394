"""Reads a task's folder and /proc and makes one observation of them.

Nothing here writes. A file that holds something else than we wrote is set aside: its trouble is told in the
observation's reason (or the end's message) and its contents are not believed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters, End, Observation, Phase, own_exit
from crawler_lifecycle.ports import TaskRef
from crawler_lifecycle.runner.held import Held, NotOurs

from . import folder as files
from .cgroup import Group
from .identity import Identity, Stat, below, carries, is_of, members, memory_of, named, read_stat, started_with
from .limits import KILLED, failed_at_limit, left_behind, settle

#: A supervisor that lives writes the end within this time after its crawler died, or it hangs.
END_SECONDS = 1.0
#: It may be dead, or slow: then it comes later, and says more.
NOT_WRITTEN = "Its supervisor had not written the end"
ONLY_SUMMARY = "; this is the runner's own summary"


class TaskFolder:
    """One task's folder at the moment of a look."""

    def __init__(self, path: Path, run: RunRef, task: TaskRef, *, doubted: bool = False) -> None:
        """``doubted``: the files that name its processes may be forged; an end counts only where none is found."""
        self.path = path
        self._doubted = doubted
        self._run = run
        self._task = task
        self._held: Held | None = None
        self.troubles: list[str] = []

    # --- files

    def exists(self) -> bool:
        """Whether the folder is there. Raises ``OSError`` when that cannot be told.

        A file, a link or a pipe in its place, or in that of a folder above it, is noted: the folder is not there.
        """
        return self._open() is not None

    def _open(self) -> Held | None:
        tasks, *names = str(self.path).rsplit(os.sep, 3)
        root = Held(tasks)  # without the folder of all tasks nothing is known
        try:
            for name in names:
                root = root.below(name)
        except FileNotFoundError:
            return None
        except NotOurs as trouble:
            self._note(f"its folder was replaced: {trouble}")
            return None
        return root

    @property
    def held(self) -> Held | None:
        """The folder, opened once; ``None`` while there is none. Raises ``OSError``."""
        if self._held is None:
            self._held = self._open()
        return self._held

    def _here(self) -> Held:
        """To write in it. Raises ``OSError``."""
        if self.held is None:
            raise FileNotFoundError(errno.ENOENT, "the folder of the task is not there", str(self.path))
        return self.held

    def create(self, name: str, data: object) -> bool:
        """Write the file if nothing has its name; whether it was us. Raises ``OSError``."""
        return files.create(self._here(), name, data)

    def foreign(self) -> str | None:
        """What to tell about a folder that is another run's; ``None`` where it is ours, or not there.

        Raises ``OSError``.
        """
        if not self.exists():
            return None
        uid = files.owner(str(self.path.parents[2]), self._run.run_id)
        return None if self._run.owns(uid) else self._run.foreign(f"the folder {self.path}", uid)

    def has(self, name: str) -> bool:
        return self.held is not None and self.held.has(name)

    def has_ended(self) -> bool:
        """Whether its end is on file, and nothing of it runs that would have had to end before. Raises ``OSError``.

        Only the supervisor writes it, when nothing of the crawler is left; a crawler that writes one itself runs on.
        """
        if not self.has(files.END):
            return False
        leader = self.identity(files.PROCESS)
        if leader is not None and leader.alive():
            return False
        if self.supervisor_alive() or self._doubted:
            return not self.processes(leader)
        # Who they were may be hidden by garbage: then nothing that is named like them may run.
        hidden = (leader is None and self.has(files.PROCESS)) or self.identity(files.SUPERVISOR) is None
        return not (hidden and self.named()[1])

    def read(self, name: str) -> dict[str, object] | None:
        """The object in the file; empty when the file holds garbage (which is noted), ``None`` without a file.

        Raises ``OSError`` when the file cannot be read: that says nothing about the task.
        """
        try:
            return files.read(self.held, name) if self.held is not None else None
        except files.Garbage as trouble:
            self._note(str(trouble))
            return {}

    def _note(self, trouble: str) -> None:
        if trouble not in self.troubles:
            self.troubles.append(trouble)

    def _typed(self, data: Mapping[str, object], name: str, kind: type, source: str) -> object | None:
        """A value of exactly this type, or ``None``; another type is noted as garbage."""
        value = data.get(name)
        if value is None or type(value) is kind:
            return value
        self._note(f"{source}: {name} is {type(value).__name__}, not {kind.__name__}")
        return None

    def text(self, data: Mapping[str, object], name: str, source: str) -> str | None:
        value = self._typed(data, name, str, source)
        return bounds.words(value)

    def count(
        self,
        data: Mapping[str, object],
        name: str,
        source: str,
        bounded: Callable[[object], int | None] = bounds.count,
    ) -> int | None:
        """A whole number as ``bounded`` takes it; one that cannot be is noted as garbage."""
        value = self._typed(data, name, int, source)
        number = bounded(value)
        if number is None and value:
            self._note(f"{source}: {name} is out of range")
        return number

    def time(self, data: Mapping[str, object], name: str, source: str) -> datetime | None:
        text = self.text(data, name, source)
        at = bounds.moment(text)
        if at is None and text is not None:
            self._note(f"{source}: {name} is no time")
        return at

    def _modified(self, name: str) -> datetime | None:
        try:
            found = self.held.stat(name) if self.held is not None else None
            return None if found is None else bounds.believable(datetime.fromtimestamp(found.st_mtime, UTC))
        except (OSError, ValueError, OverflowError):
            return None

    # --- processes

    def identity(self, name: str) -> Identity | None:
        """The process named in the file; ``None`` when there is no file or garbage in it."""
        data = self.read(name)
        if data is None:
            return None
        try:
            process = Identity.from_json(data)
            ours = not process.alive() or is_of(str(self.path), self.marks(), process.pid)
            # Asked last: one that ends meanwhile loses its arguments before its number, and is no stranger for that.
            if not ours and process.can_be_asked():
                raise ValueError("it names a process of something else")
        except ValueError as trouble:
            if not any(known.startswith(name) for known in self.troubles):
                self._note(f"{name}: {trouble}")
            return None
        return process

    def named(self, uid: str | None = None) -> tuple[list[Identity], list[Stat]]:
        """Supervisors and crawler processes of this task by what they were started with, whatever became of its folder.

        With ``uid`` only those of that very object.
        """
        return named(str(self.path), self.marks(), uid)

    def marks(self) -> list[bytes]:
        return files.marks(self._run.run_id, self._run.uid, self._task.task_id, str(self.path / files.FILES))

    def processes(self, leader: Identity | None) -> list[Stat]:
        """The living processes of the crawler, also those that left its group."""
        found = {stat.pid: stat for stat in members(leader, self.marks())}
        for stat in self._tree(leader):
            found.setdefault(stat.pid, stat)
        group = self._group()
        if group is not None:
            more = [read_stat(pid) for pid in group.pids() if pid not in found]
            found |= {stat.pid: stat for stat in more if stat is not None and not stat.ended}
        return list(found.values())

    def _tree(self, leader: Identity | None) -> list[Stat]:
        """What lives below supervisor and runner, which adopt orphans: also what hides its environment.

        The crawler may write into the files that name the two, so each has to be what it is named for.
        """
        found = []
        supervisor = self.identity(files.SUPERVISOR)
        if supervisor is not None and supervisor.alive() and started_with(supervisor.pid, str(self.path)):
            found += below(supervisor.pid)
        if leader is not None and leader.alive() and carries(leader.pid, self.marks()):
            found += below(leader.pid)
        return found

    # --- the control group

    def _group(self) -> Group | None:
        """The control group on file, if the file can be believed."""
        if not self.has(files.CGROUP):
            return None
        try:
            return left_behind(self._here(), self.read(files.SPEC) or {})
        except files.Garbage as trouble:
            self._note(str(trouble))
            return None

    def settle_group(self) -> None:
        """Keep what the control group knows and remove it, if no supervisor is there to do so. Raises ``OSError``."""
        if self.has(files.CGROUP) and not self.supervisor_alive():
            group = self._group()
            if group is not None:
                settle(self._here(), group)

    def _oom(self) -> str | None:
        """What is known of a kill for the memory limit before the end is on file; ``None`` if there was none.

        Raises ``OSError``.
        """
        kills, group = 0, self._group()
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            kills = group.oom_kills() if group is not None else 0
        # The file last: another look writes it before it removes the group.
        if self.has(files.OOM):
            return self.text(self.read(files.OOM) or {}, "message", files.OOM) or KILLED
        return KILLED if kills else None

    def _failed_at_limit(self, summary: Mapping[str, object]) -> str | None:
        """Whether it failed, without a reason of its own, after it had held all that it may; as the supervisor says it.

        What the kernel limits is killed, and cannot get that far.
        """
        if self.has(files.CGROUP):
            return None
        limit = self.count(self.read(files.SPEC) or {}, "memory_limit", files.SPEC)
        return failed_at_limit(self.peak_memory(), limit or None, summary.get("finish_reason") or None)

    def uid(self) -> str | None:
        """The identity of the object under this name; ``None`` when there is none, or garbage hides it."""
        return self.text(self.read(files.SPEC) or {}, "uid", files.SPEC)

    def supervisor_alive(self) -> bool:
        """Whether a supervisor lives: by its identity, or by its lock when garbage hides the identity."""
        supervisor = self.identity(files.SUPERVISOR)
        if supervisor is not None:
            return supervisor.alive()
        return self.has(files.SUPERVISOR) and self._locked()

    def _locked(self) -> bool:
        try:
            handle = self._here().open(files.LOCK)
        except NotOurs:
            return False
        if handle is None:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    # --- the observation

    def observe(self, now: datetime, node: str) -> Observation:
        """What is true about this task. Raises ``OSError`` when that cannot be read."""
        if (foreign := self.foreign()) is not None:
            return self._without_folder(now, node, foreign)
        if self.exists():
            seen = self._within_folder(now, node)
            if seen.name is not None:
                return seen
        # Also when it was taken away while we read: what was missing then says nothing.
        return self._without_folder(now, node)

    def _within_folder(self, now: datetime, node: str) -> Observation:
        if self.has_ended():
            return self._ended(now, node)
        # Asked before anybody is looked for: what begins meanwhile is not gone.
        began = self.has(files.SUPERVISOR) or self.has(files.PROCESS)
        if self.supervisor_alive():
            if not self.has(files.PROCESS) and not self._executes_unseen():
                return self._waiting(now)
            return self._outlived(now, node, supervised=True)
        if self.has_ended():  # it wrote the end and left while we looked
            return self._ended(now, node)
        if not began:
            reason = "deployed, but its supervisor has not started" if self.has(files.SPEC) else None
            return self._seen(Phase.ABSENT, now, reason=reason)
        return self._outlived(now, node, supervised=False)

    def _without_folder(self, now: datetime, node: str, foreign: str | None = None) -> Observation:
        """Never deployed, or deployed for sure (the database knows its uid) and somebody took its folder away.

        ``foreign`` says whose folder is in its place.
        """
        if self._task.uid is None:
            seen = self._seen(Phase.ABSENT, now, reason=foreign)
        else:
            supervisors, crawlers = self.named()
            phase = Phase.EXECUTING if crawlers else Phase.WAITING if supervisors else Phase.GONE
            seen = self._seen(phase, now, node=node, reason=foreign or "its folder was removed")
        return seen if foreign is None else replace(seen, name=None, uid=None)

    def _end_appears(self) -> bool:
        """Give a living supervisor the moment it needs to reap and write the end."""
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until and not self.has_ended():
            time.sleep(0.02)
        return self.has_ended()

    def _executes_unseen(self) -> bool:
        """Whether it left the queue and executes, although the file that says so is gone."""
        name = cluster_name(self._run.run_id, self._task.index, self._task.attempt)
        return not Held(str(self.path.parents[3] / "waiting")).has(name) and bool(members(None, self.marks()))

    def _waiting(self, now: datetime) -> Observation:
        waiting = self.read(files.WAITING) or {}
        since = self.time(self.read(files.SUPERVISOR) or {}, "since", files.SUPERVISOR)
        reason = self.text(waiting, "reason", files.WAITING) or "starting"
        return self._seen(Phase.WAITING, now, reason=reason, changed_at=since)

    def _outlived(self, now: datetime, node: str, *, supervised: bool) -> Observation:
        """There is no end on file: look for the crawler itself, then for its own summary."""
        leader = self.identity(files.PROCESS)
        stat = leader.stat() if leader is not None else None
        alone = None if supervised else "its supervisor is dead"
        if (stat is not None and not stat.ended) or self.processes(leader):
            return self._executing(now, node, alone)
        if self.has_ended() or (supervised and leader is not None and self._end_appears()):
            return self._ended(now, node)
        if self.has(files.SUMMARY):
            summary = self.read(files.SUMMARY) or {}
            if summary or not supervised:
                return self._ended_by_summary(now, node, summary)
        if stat is not None and stat.exit_status:
            # A zombie that nobody reaps. A status of 0 proves nothing: the kernel shows 0 to whom it trusts not.
            code = os.waitstatus_to_exitcode(stat.exit_status)
            oom = self._oom()
            end = End(
                exit_code=code if code >= 0 else 128 - code,
                signal=-code if code < 0 else None,
                reason="OOMKilled" if oom else "Error",
                message=self._message(f"{NOT_WRITTEN}{f'. {oom}' if oom else '; this is what the kernel kept'}"),
                memory_limit=self._memory_limit(),
            )
            return self._with_end(now, node, end)
        if not supervised and (oom := self._oom()):
            message = self._message(f"{NOT_WRITTEN}. {oom}")
            end = End(exit_code=137, signal=9, reason="OOMKilled", message=message, memory_limit=self._memory_limit())
            return self._with_end(now, node, end)
        if supervised:
            # Hidden by garbage in process.json, or the end cannot be written yet (a full disk): it will be.
            return self._executing(now, node, "its supervisor has not written the end yet")
        if self.troubles:
            message = self._message("Nothing of it runs any more, and its evidence cannot be read")
            return self._with_end(now, node, End(reason="Error", message=message))
        return self._seen(Phase.GONE, now, node=node, reason=alone, started_at=self._started())

    def _executing(self, now: datetime, node: str, reason: str | None) -> Observation:
        counters, progress = self.counters()
        started = self._started()
        return self._seen(
            Phase.EXECUTING,
            now,
            node=node,
            reason=reason,
            changed_at=started,
            started_at=started,
            counters=counters,
            progress_at=progress,
            quiet=self._quiet(now),
        )

    def _quiet(self, now: datetime) -> timedelta | None:
        """As its runner says, which lives and is on this machine: its clock is ours."""
        leader = self.identity(files.PROCESS)
        wrote_at = self.time(self.read(files.STATS) or {}, "wrote_at", files.STATS)
        if wrote_at is None or leader is None or not leader.alive():
            return None
        return max(now - wrote_at, timedelta(0))

    def _ended(self, now: datetime, node: str) -> Observation:
        data = self.read(files.END) or {}
        summary = self.read(files.SUMMARY) or {}
        code = self.count(data, "exit_code", files.END, bounds.exit_code)
        number = self.count(data, "signal", files.END, bounds.exit_signal)
        finish = self.text(summary, "finish_reason", files.SUMMARY)
        own = self.count(summary, "exit", files.SUMMARY, bounds.exit_code)
        reason = self.text(data, "reason", files.END) or "Error"
        if number == 9 and finish is not None and own is not None and reason == "Error":
            # The runner was killed in the instant between its last word and its exit: its word is the better evidence.
            code, number, reason = own, None, "Error" if own else "Completed"
        end = End(
            exit_code=self._own_exit(code, finish, summary),
            signal=number,
            reason=reason,
            message=self._message(
                self.text(data, "message", files.END) or self.text(summary, "message", files.SUMMARY)
            ),
            finished_at=self.time(data, "finished_at", files.END) or self._modified(files.END),
            finish_reason=finish,
            memory_limit=self._memory_limit(),
        )
        return self._with_end(now, node, end)

    def _ended_by_summary(self, now: datetime, node: str, summary: Mapping[str, object]) -> Observation:
        code = self.count(summary, "exit", files.SUMMARY, bounds.exit_code)
        number = self.count(summary, "signal", files.SUMMARY, bounds.exit_signal)
        oom = None if code == 0 else self._oom() or self._failed_at_limit(summary)
        reason = "Completed" if code == 0 else "OOMKilled" if oom else "Error"
        finish = self.text(summary, "finish_reason", files.SUMMARY)
        end = End(
            exit_code=self._own_exit(code, finish, summary),
            signal=number if number is not None and code == 128 + number else None,
            reason=reason,
            message=self._message(f"{NOT_WRITTEN}{f'. {oom}' if oom else ONLY_SUMMARY}"),
            finished_at=self.time(summary, "finished_at", files.SUMMARY) or self._modified(files.SUMMARY),
            finish_reason=finish,
            memory_limit=self._memory_limit(),
        )
        return self._with_end(now, node, end)

    def _own_exit(self, code: int | None, finish: str | None, summary: Mapping[str, object]) -> int | None:
        return own_exit(code, finish, self.count(summary, "own_exit", files.SUMMARY, bounds.exit_code))

    def _with_end(self, now: datetime, node: str, end: End) -> Observation:
        counters, progress = self.counters(final=True)
        return self._seen(
            Phase.ENDED,
            now,
            node=node,
            changed_at=end.finished_at,
            started_at=self._started(),
            counters=counters,
            progress_at=progress,
            peak_memory=self.peak_memory(),
            end=end,
        )

    def _started(self) -> datetime | None:
        return self.time(self.read(files.PROCESS) or {}, "started_at", files.PROCESS)

    def _memory_limit(self) -> str | None:
        return self.text(self.read(files.SPEC) or {}, "memory_text", files.SPEC)

    def memory(self) -> int | None:
        """Bytes at the peak; of a task that executes, what it holds now."""
        leader = self.identity(files.PROCESS)
        if leader is not None and leader.alive():
            return memory_of(leader.pid, None) or None
        return self.peak_memory()

    def peak_memory(self) -> int | None:
        """Bytes, as far as somebody measured."""
        sources = (files.END, files.SUMMARY, files.OOM)
        measured = [self.count(self.read(name) or {}, "peak_memory", name) for name in sources]
        return max((value for value in measured if value is not None), default=None)

    def counters(self, *, final: bool = False) -> tuple[Counters, datetime | None]:
        """The counters and when the crawler last wrote them; after the end the summary's where it has any."""
        stats = self.read(files.STATS) or {}
        progress = self.time(stats, "updated_at", files.STATS)
        if progress is None and stats:
            progress = self._modified(files.STATS)
        summary = (self.read(files.SUMMARY) or {}) if final else {}
        values = {}
        for name in ("pages", "items", "errors", "bytes"):
            last = self.count(summary, name, files.SUMMARY)
            values[name] = last if last is not None else self.count(stats, name, files.STATS)
        return Counters(**values), progress

    def _resumption(self, *, final: bool) -> tuple[bool | None, str | None]:
        """What the runner said about going on with saved state; only tasks of later attempts have that."""
        if self._task.attempt == 1:
            return None, None
        name = files.SUMMARY if final and self.has(files.SUMMARY) else files.STATS
        said = self.read(name) or {}
        note = self.text(said, "resume_note", name)
        resumed = self._typed(said, "resumed", bool, name)
        return (resumed if isinstance(resumed, bool) else None), bounds.words(note, bounds.NOTE_MAX)

    def _message(self, text: str | None) -> str | None:
        parts = [text] if text else []
        parts += [f"set aside: {trouble}" for trouble in self.troubles]
        return "; ".join(parts)[:2000] or None

    def _seen(
        self,
        phase: Phase,
        now: datetime,
        *,
        node: str | None = None,
        reason: str | None = None,
        changed_at: datetime | None = None,
        started_at: datetime | None = None,
        counters: Counters | None = None,
        progress_at: datetime | None = None,
        quiet: timedelta | None = None,
        peak_memory: int | None = None,
        end: End | None = None,
    ) -> Observation:
        resumed, note = self._resumption(final=end is not None) if started_at is not None else (None, None)
        uid = self.uid()
        there = self.exists()  # asked last: see ``observe``
        return Observation(
            index=self._task.index,
            attempt=self._task.attempt,
            phase=phase,
            observed_at=now,
            name=cluster_name(self._run.run_id, self._task.index, self._task.attempt) if there else None,
            uid=uid if there else None,
            node=node,
            reason=self._message(reason),
            changed_at=changed_at,
            started_at=started_at,
            counters=counters or Counters(),
            progress_at=progress_at,
            quiet=quiet,
            peak_memory=peak_memory,
            resumed=resumed,
            resume_note=note,
            end=end,
        )

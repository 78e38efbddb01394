"""The supervisor of a local task, a small detached process that may outlive all our other
processes.

The supervisor waits for a slot, and records the crawler's identity before the crawler executes. It
forwards a stop once, and enforces the memory limit and the grace time after a stop. Finally it
reaps the crawler and writes the end. All its data comes from the task's folder, so it does not need
the process that started it. It uses only the standard library.

Its arguments are: the task's folder, the time (seconds since the epoch) after which it must not
begin, and the task's uid. A stop finds the supervisor by these arguments, even without the folder.
The process that was started forks the real supervisor, and exits with the code that it reports:
``TOOK_CHARGE`` or one of the codes below it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable

from crawler_lifecycle.clusters.local.folders.limits import KILLED, KernelLimits, failed_at_limit
from crawler_lifecycle.clusters.local.folders.project import NoDigest, ProjectFolder, commit_of
from crawler_lifecycle.clusters.local.processes.identity import (
    Identity,
    Stat,
    below,
    kill_all,
    members,
    memory_of,
)
from crawler_lifecycle.clusters.local.processes.slot_queue import (
    WAKERS,
    QueueSignal,
    alarm,
    free_slot,
    open_turnstiles,
    prepare_signals,
    try_lock,
)
from crawler_lifecycle.runner.child import become_subreaper, hide_environment
from crawler_lifecycle.runner.contract import moment, now
from crawler_lifecycle.runner.safe_directory import NotOurs, SafeDirectory

from .folders import folder as files
from .processes import liveness_marks

TOOK_CHARGE = 0
#: The exit code if another supervisor has this task, or if the task has already begun or ended.
NOT_NEEDED = 3
#: The exit code if the deployment call has expired.
EXPIRED = 5
BROKEN = 70

#: Seconds between two checks of the memory and the stop file. Signals are handled immediately.
TICK = 0.5
#: Seconds for which writing the end is retried after an error, because a full disk must not destroy
#: this evidence.
WRITE_END_SECONDS = 600
#: Seconds between two rounds of SIGKILL, and the maximum number of rounds while the crawler is
#: watched and before its end is reported. On an overloaded machine, a killed process may take a
#: long time to end.
ROUND = 0.02
ROUNDS = 50
LAST_ROUNDS = 3000

#: The bytes that let the forked child continue without a control group, or in its own control
#: group.
GATE_PLAIN = b"x"
GATE_IN_GROUP = b"g"


class _Unstartable(Exception):
    """A crawler that cannot be executed."""


class Supervisor:
    """A task, from the queue to its end."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._home = files.held(folder)
        spec = files.read(self._home, files.SPEC)
        if spec is None:
            raise FileNotFoundError(os.path.join(folder, files.SPEC))
        self._spec = spec
        self._limit = _positive(spec.get("memory_limit"))
        self._kernel = KernelLimits(self._home, spec)
        self._adopts = False
        self._reserve: files.EndReserve | None = None
        self._started: float | None = None
        self._peak = 0
        self._oom = False
        self._message: str | None = None

    def _within(self) -> str:
        """Return a path of our open folder, which is valid even if its name now belongs to
        something else.
        """
        return f"/proc/self/fd/{self._home.fileno()}"

    def _stop_asked(self) -> bool:
        return alarm.stop_asked or self._home.has(files.STOP)

    # --- taking charge

    def take_charge(self, expires_at: float) -> int:
        """Become the only supervisor of this task and return ``TOOK_CHARGE``; otherwise return
        ``NOT_NEEDED`` or ``EXPIRED``.

        The lock is held until this process ends.
        """
        self._lock = self._home.lockable(files.LOCK)
        if (
            not try_lock(self._lock, seconds=1.0)
            or self._home.has(files.PROCESS)
            or self._home.has(files.END)
        ):
            return NOT_NEEDED
        if self._home.has(files.SUPERVISOR):
            # An earlier supervisor died while it waited. A poll may have reported the task as gone,
            # so do not start it.
            return NOT_NEEDED
        me = {**Identity.of(os.getpid())._asdict(), "since": now()}
        files.create(self._home, files.SUPERVISOR, me)
        # Check the time after locking, so that if a poll finds no supervisor after this time, none
        # begins later.
        if time.time() >= expires_at:
            self._home.unlink(files.SUPERVISOR)
            return EXPIRED
        return TOOK_CHARGE

    # --- the queue

    def run(self) -> None:
        """Run the task from the queue to its end."""
        self._adopts = become_subreaper()
        # Write the mark again, because an observer may have removed it if we began late.
        self._mark(liveness_marks.begin)
        slot = self._wait_for_slot()
        if slot is None or self._stop_asked():
            self._write_end(None, "Cancelled", "It was stopped while it waited and never executed")
            return
        self._execute(slot)

    def _wait_for_slot(self) -> int | None:
        """Wait for a slot, and return its open, locked file; ``None`` if a stop came first.

        Each priority has a queue. Only the first supervisor of a queue tries the slots, and only
        while the queues of higher priorities are empty. The others sleep until they get the lock of
        their queue's turnstile, which the kernel grants in the order of requests. Before that, each
        run has its own queue, and only its first supervisor waits at the turnstile, so that runs
        take turns.
        """
        slots_dir = str(self._spec["slots_dir"])
        count = _positive(self._spec.get("slots")) or 1
        *before, turnstile = open_turnstiles(slots_dir, _positive(self._spec.get("priority")) or 3)
        # The lock of the run's folder is the queue of its tasks.
        own = os.open("../..", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._home.fileno())
        try:
            if (
                try_lock(own)
                and try_lock(turnstile)
                and (slot := free_slot(slots_dir, count, before)) is not None
            ):
                return slot
            reason = f"waiting: {count} of {count} slots in use"
            files.replace(self._home, files.WAITING, {"reason": reason, "since": now()})
            self._sleep_in_queue(own)
            self._sleep_in_queue(turnstile)
            # The next supervisor of the run reaches the turnstile before we leave it, so that no
            # less urgent supervisor passes it.
            fcntl.flock(own, fcntl.LOCK_UN)
            while not self._stop_asked():
                if (slot := free_slot(slots_dir, count, before)) is not None:
                    return slot
                alarm.wait(0.1)
            return None
        finally:
            for handle in (*before, turnstile, own):
                os.close(handle)

    def _sleep_in_queue(self, lock: int) -> None:
        """Wait for a lock, or for a stop."""
        while not self._stop_asked():
            try:
                alarm.sleep_in_queue(lock)
            except QueueSignal:
                signal.pthread_sigmask(signal.SIG_BLOCK, WAKERS)
                continue
            return

    # --- the crawler

    def _execute(self, slot: int) -> None:
        self._reserve = files.EndReserve(self._within())
        pid = status = None
        how: tuple[str, str | None] = ("Cancelled", "It was stopped before its crawler executed")
        try:
            pid = self._start(slot)
        except (_Unstartable, OSError, KeyError, TypeError, ValueError) as error:
            how = ("ContainerCannotRun", f"The crawler could not be started: {error}")
        if pid is not None:
            self._watch(pid)
            status = self._reap(pid)
            self._remove_code()
            how = self._reason(status)
        self._write_end(status, *how)
        self._kernel.remove()

    def _start(self, slot: int) -> int | None:
        """Fork, record the identity of the child, and only then let it execute the runner.

        Return its pid, or ``None`` after a stop. Raises ``_Unstartable`` if the program cannot be
        executed.
        """
        gate_out, gate_in = os.pipe()
        fail_out, fail_in = os.pipe()
        environment = self._environment()
        code = self._code()
        self._kernel.prepare(self._limit)
        pid = os.fork()
        if pid == 0:
            os.close(gate_in)
            self._become_crawler(gate_out, fail_in, slot, environment)
        os.close(gate_out)
        os.close(fail_in)
        self._started = time.time()
        child = Identity.of(pid)
        opened = False
        try:
            record = {**child._asdict(), "group": pid, "started_at": moment(self._started)}
            record["code"] = code
            files.replace(self._home, files.PROCESS, record)
            self._report_beside(record)
            self._kernel.admit(pid)
            opened = not self._stop_asked()
            if opened:
                os.write(gate_in, GATE_IN_GROUP if self._kernel.in_force else GATE_PLAIN)
        finally:
            os.close(gate_in)  # a child that gets no byte exits and executes nothing
            with open(fail_out, "rb") as failures:
                failure = failures.read().decode("utf-8", "replace")
            if failure or not opened:
                os.waitpid(pid, 0)
        if failure:
            raise _Unstartable(failure)
        return pid if opened else None

    def _code(self) -> files.Record:
        """Return the code that is about to execute, as ``domain.code.Code.of`` reads it.

        Never raises, because a crawler without a known code must also execute.
        """
        named = self._spec.get("code")
        code: files.Record = dict(named) if isinstance(named, dict) else {}
        if code.get("digest"):
            return code  # the runner checks the digest of what it fetches
        project = self._spec.get("project")
        if not isinstance(project, str):
            return {**code, "note": "the catalogue entry names no project folder"}
        code["commit"] = code.get("commit") or commit_of(project)
        try:
            code["digest"] = ProjectFolder(project, str(self._spec.get("codes_dir"))).digest()
        except NoDigest as why:
            code["note"] = str(why)
        return code

    def _environment(self) -> dict[str, str]:
        """Return the crawler's environment, in which the catalogue's variables override ours, and
        those of the process contract override both.

        The process that started us has already reduced our environment to the allowed variables.
        """
        env = dict(os.environ)
        for part in ("env", "contract"):
            given = self._spec.get(part)
            if isinstance(given, dict):
                env.update({str(name): str(value) for name, value in given.items()})
        seconds = self._spec.get("run_timeout_s")
        if isinstance(seconds, (int, float)):
            env["CRAWL_DEADLINE"] = moment(time.time() + seconds)
        env["CRAWL_TASK_UID"] = str(self._spec.get("uid"))
        env["CRAWL_LOG_FILE"] = os.path.join(self._folder, files.LOG)
        return env

    def _become_crawler(self, gate: int, fail: int, slot: int, environment: dict[str, str]) -> None:
        """Wait for the gate in the child, then execute the runner. Never returns."""
        try:
            os.setsid()
            go = os.read(gate, 1)
            if not go:
                os._exit(NOT_NEEDED)
            argv = self._spec["argv"]
            if not isinstance(argv, list) or not argv:
                raise ValueError("argv in spec.json is not a list of words")
            log = self._home.new(files.LOG)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.set_inheritable(slot, True)  # the slot stays in use while we or the runner live
            if self._limit is not None and go == GATE_PLAIN:
                # This higher limit stops a crawler that grows too fast for our checks. The actual
                # limit is compared with resident memory, because mapped memory (threads, arenas) is
                # much larger than used memory.
                _, hard = resource.getrlimit(resource.RLIMIT_DATA)
                ceiling = 2 * self._limit + 256 * 1024 * 1024
                ceiling = ceiling if hard == resource.RLIM_INFINITY else min(ceiling, hard)
                resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
            self._change_user(log)
            os.chdir(str(self._spec["cwd"]))
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            # The runner starts with blocked stop signals, and reads them when it is ready, so no
            # stop signal can kill the runner before that.
            signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM, signal.SIGINT})
            # The runner closes this descriptor for the crawler, which must not keep a slot.
            environment["CRAWL_SLOT_FD"] = str(slot)
            os.execve(argv[0], argv, environment)  # noqa: S606
        except BaseException as error:
            os.write(fail, f"{type(error).__name__}: {error}".encode()[:2000])
        finally:
            os._exit(127)

    def _change_user(self, log: int) -> None:
        """Switch to the user in the spec, if there is one, with only its main group.

        The child cannot switch back.

        The log must belong to this user, because the runner limits its size.
        """
        user = self._spec.get("user")
        if isinstance(user, dict):
            os.fchown(log, int(user["uid"]), int(user["gid"]))
            os.setgroups([])
            os.setresgid(*[int(user["gid"])] * 3)
            os.setresuid(*[int(user["uid"])] * 3)

    def _watch(self, pid: int) -> None:
        """Wait until the runner has ended, without reaping it, so that no other process gets its
        number.
        """
        forced_at: float | None = None
        while True:
            alarm.wait(TICK)
            changed = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if changed is not None and changed.si_code != os.CLD_STOPPED:
                return
            if changed is not None:
                # A suspended runner cannot report how the crawler ended.
                os.kill(pid, signal.SIGCONT)
            if forced_at is None and self._stop_asked():
                forced_at = time.monotonic() + self._grace()
                if self._note_signal():
                    os.kill(pid, signal.SIGTERM)
            if forced_at is not None and time.monotonic() >= forced_at:
                self._message = (
                    f"It was killed because it was still running {self._grace():g} s after the stop"
                )
                self._kill_group(pid)
            self._watch_memory(pid)

    def _remove_code(self) -> None:
        """Remove the code that the runner fetched, because each task has its own copy."""
        folder = self._spec.get("code_dir")
        if isinstance(folder, str):
            shutil.rmtree(folder, ignore_errors=True)

    def _note_signal(self) -> bool:
        """Record that the stop signal is sent, and return whether we must send it because no other
        process has.

        If the folder is not writable, no other process can send it.
        """
        try:
            return files.create(self._home, files.SIGNALLED, {"by": "supervisor", "at": now()})
        except OSError:
            return True

    def _grace(self) -> float:
        grace = self._spec.get("stop_grace_s")
        return float(grace) if isinstance(grace, (int, float)) else 30.0

    def _watch_memory(self, pid: int) -> None:
        if self._kernel.in_force or self._limit is None:
            return
        used = memory_of(pid, self._limit)
        self._peak = max(self._peak, used)
        if used >= self._limit and not self._oom:
            self._oom = True
            self._message = f"It used {used} bytes of memory; the limit is {self._limit} bytes"
            # Record the reason before the kill, so that a poll knows it before the end is recorded.
            with contextlib.suppress(OSError):
                files.create(self._home, files.OOM, {"message": self._message, "peak_memory": used})
            self._kill_group(pid)

    def _kill_group(self, pid: int, rounds: int = ROUNDS) -> None:
        """Send SIGKILL to the crawler's group and to processes that left it.

        The group's number is safe to use, because no process gets our child's number before we reap
        it.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        leader = Identity.of(pid)
        contract = self._spec.get("contract")
        given = contract if isinstance(contract, dict) else {}
        run = given.get("CRAWL_RUN_ID"), given.get("CRAWL_RUN_UID")
        marks = files.marks(*run, given.get("CRAWL_TASK_ID"), str(given.get("CRAWL_FILES_DIR")))
        for _ in range(rounds):  # a process may fork between the listing and the kill
            self._kernel.kill()
            found = {stat.pid: stat for stat in [*members(leader, marks), *self._tree()]}
            if not kill_all(found.values()):
                return
            time.sleep(ROUND)

    def _tree(self) -> list[Stat]:
        """Return our descendants, which are all processes of the crawler, because we adopt its
        orphans.
        """
        return below(os.getpid()) if self._adopts else []

    def _reap(self, pid: int) -> int:
        """Kill all remaining processes of the crawler, then reap it and return its status.

        A task has ended only when none of its processes is running.
        """
        self._kill_group(pid, LAST_ROUNDS)
        _, status, usage = os.wait4(pid, 0)
        self._peak = max(self._peak, usage.ru_maxrss * 1024, self._kernel.peak())
        if self._adopts:
            self._empty_tree()
        return status

    def _empty_tree(self) -> None:
        """Wait until the kernel reports that we have no child, dead or alive, which proves the end.
        There is no time limit, because a process that hangs in the kernel cannot be killed, and
        keeps its slot.
        """
        with contextlib.suppress(ChildProcessError):
            while True:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                kill_all(self._tree())
                time.sleep(ROUND)

    # --- the end

    def _reason(self, status: int) -> tuple[str, str | None]:
        """Return the reason in the terms of Kubernetes, and a readable message if there is more to
        report.
        """
        if self._oom:
            return "OOMKilled", self._message
        if status == 0:
            return "Completed", None
        if self._kernel.oom_kills():
            return "OOMKilled", KILLED
        if not self._kernel.in_force:
            oom = failed_at_limit(self._peak, self._limit, self._summary().get("finish_reason"))
            if oom is not None:
                return "OOMKilled", oom
        return "Error", self._message

    def _summary(self) -> files.Record:
        try:
            return files.read(self._home, files.SUMMARY) or {}
        except (files.Garbage, OSError):
            return {}

    def _removed(self) -> bool:
        """Return whether our folder was removed.

        If the folder of all tasks is also missing, its disk may only be unmounted, and may be
        mounted again during this check. That folder is therefore opened first and then searched.
        """
        tasks, *names = self._folder.rsplit(os.sep, 3)  # run, index, attempt
        try:
            there = SafeDirectory(tasks)
        except OSError:
            return False
        try:
            there = there.below(*names)
            return not os.path.samestat(os.fstat(there.fileno()), os.fstat(self._home.fileno()))
        except (FileNotFoundError, NotOurs):
            return True
        except OSError:
            return False

    def _write_end(self, status: int | None, reason: str, message: str | None) -> None:
        exit_code = number = None
        if status is not None:
            exit_code = os.waitstatus_to_exitcode(status)
            if exit_code < 0:
                exit_code, number = 128 - exit_code, -exit_code
            else:
                # The runner ends with 128 + n for a crawler that signal n killed. The runner's
                # summary shows whether this was a signal or the crawler's own exit code.
                killed_by = _positive(self._summary().get("signal"))
                number = (
                    killed_by if killed_by is not None and exit_code == 128 + killed_by else None
                )
        if self._oom:
            exit_code = 137
            number = int(signal.SIGKILL)
        end: files.Record = {
            "exit_code": exit_code,
            "signal": number,
            "reason": reason,
            "message": message,
            "started_at": moment(self._started) if status is not None and self._started else None,
            "finished_at": now(),
            "peak_memory": self._peak or None,
        }
        give_up = time.monotonic() + WRITE_END_SECONDS
        while True:
            try:
                # The crawler may have forged an end, but the crawler is no longer running.
                self._home.set_aside(files.END)
                if self._reserve is None or not self._reserve.become(
                    os.path.join(self._within(), files.END), end
                ):
                    files.create(self._home, files.END, end)
                break
            except OSError:
                if self._removed():
                    break
                if time.monotonic() >= give_up:
                    raise
                time.sleep(1)
        end["message"] = message or "Its folder was removed"
        self._report_beside(end if self._removed() else None)
        self._mark(liveness_marks.end)

    def _report_beside(self, report: files.Record | None) -> None:
        """Write the start or end to a file outside our folder, because the crawler can remove the
        folder.

        ``None`` removes the file.
        """
        folder, name = os.path.split(str(self._spec.get("started")))
        with contextlib.suppress(OSError):
            if report is None:
                SafeDirectory(folder).unlink(name)
            else:
                files.replace(SafeDirectory(folder), name, {**report, "uid": self._spec.get("uid")})

    def _mark(self, change: Callable[[str], None]) -> None:
        mark = self._spec.get("live_mark")
        if isinstance(mark, str):
            change(mark)


def _positive(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def main(argv: list[str]) -> None:
    """Detach, take charge, report this to the waiting starter process, and run the task to its
    end.
    """
    hide_environment()  # before forking, because the environment contains the crawler's secrets
    folder = argv[0]
    expires_at = float(argv[1])
    answer_out, answer_in = os.pipe()
    if os.fork():
        os.close(answer_in)
        answer = os.read(answer_out, 1)
        os._exit(answer[0] if answer else BROKEN)
    os.close(answer_out)
    prepare_signals()
    supervisor = Supervisor(folder)
    answer_code = supervisor.take_charge(expires_at)
    os.write(answer_in, bytes([answer_code]))
    os.close(answer_in)
    if answer_code == TOOK_CHARGE:
        supervisor.run()
    os._exit(0)  # exit immediately, because no cleanup is needed, and a kill may wait for our end

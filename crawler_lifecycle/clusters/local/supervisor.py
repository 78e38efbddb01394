"""The supervisor of one local task: a small detached process that outlives all our other processes.

It waits for a slot, records the crawler's identity before the crawler executes, forwards a stop once, enforces the
memory limit and the grace after a stop, reaps, and writes the end. It reads everything from the task's folder, so
nothing is lost when the process that started it dies. Standard library only.

Its argument vector is: the task's folder, the time (seconds since the epoch) after which it must not begin, and the
task's uid. By these a stop finds it, whatever became of the folder.
The process that was started exits as soon as the supervisor proper has taken charge; see ``TOOK_CHARGE`` and below.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable

from crawler_lifecycle.clusters.local.folders.limits import KILLED, KernelLimits, failed_at_limit
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
    Woken,
    alarm,
    free_slot,
    open_turnstiles,
    prepare_signals,
    try_lock,
)
from crawler_lifecycle.runner.child import become_subreaper, hide_environment
from crawler_lifecycle.runner.held import Held, NotOurs

from .folders import folder as files
from .processes import liveness_marks

TOOK_CHARGE = 0
#: Another supervisor has this task, or the task has begun or ended already.
NOT_NEEDED = 3
#: The deployment call was too old.
EXPIRED = 5
BROKEN = 70

#: Seconds between two checks of memory and stop file. Signals are answered at once.
TICK = 0.5
#: A full disk must not lose the evidence of an end: writing is retried for so many seconds.
WRITE_END_SECONDS = 600
#: Rounds of SIGKILL, and the pause between them: while the crawler is watched, and before its end is said. On a machine
#: that is short of everything, one that was killed may take long to go.
ROUND = 0.02
ROUNDS, LAST_ROUNDS = 50, 3000

#: The byte that lets the forked child continue: without a control group of its own, or inside of one.
GATE_PLAIN = b"x"
GATE_IN_GROUP = b"g"


class _Unstartable(Exception):
    """The crawler could not be executed."""


class Supervisor:
    """One task from its place in the queue to its end."""

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
        """A path of the folder that we hold, whatever was put in its place."""
        return f"/proc/self/fd/{self._home.fileno()}"

    def _stop_asked(self) -> bool:
        return alarm.stop_asked or self._home.has(files.STOP)

    # --- taking charge

    def take_charge(self, expires_at: float) -> int:
        """Become the only supervisor of this task, or report why not. The lock lasts as long as this process."""
        self._lock = self._home.lockable(files.LOCK)
        if not try_lock(self._lock, seconds=1.0) or self._home.has(files.PROCESS) or self._home.has(files.END):
            return NOT_NEEDED
        if self._home.has(files.SUPERVISOR):
            # An earlier supervisor died while it waited. A look may have reported the task as gone, so it stays gone.
            return NOT_NEEDED
        me = {**Identity.of(os.getpid())._asdict(), "since": files.utc(time.time())}
        files.create(self._home, files.SUPERVISOR, me)
        # Checked after the lock: a look after the deadline that found no supervisor can rely on none beginning later.
        if time.time() >= expires_at:
            self._home.unlink(files.SUPERVISOR)
            return EXPIRED
        return TOOK_CHARGE

    # --- the queue

    def run(self) -> None:
        """From the queue to the end."""
        self._adopts = become_subreaper()
        # Again: who waited long for us may have dropped the mark of a task that never began.
        self._mark(liveness_marks.begin)
        slot = self._wait_for_slot()
        if slot is None or self._stop_asked():
            self._write_end(None, "Cancelled", "It was stopped while it waited and never executed")
            return
        self._execute(slot)

    def _wait_for_slot(self) -> int | None:
        """Return the open, locked file of a slot; ``None`` when a stop came first.

        Each priority has a queue. One waiter of each, its head, tries the slots while no queue before it has a waiter;
        the others sleep in the kernel's own queue of the turnstile's lock, which is first come, first served.
        """
        slots_dir = str(self._spec["slots_dir"])
        count = _positive(self._spec.get("slots")) or 1
        *before, turnstile = open_turnstiles(slots_dir, _positive(self._spec.get("priority")) or 3)
        try:
            if try_lock(turnstile) and (slot := free_slot(slots_dir, count, before)) is not None:
                return slot
            reason = f"waiting: {count} of {count} slots in use"
            files.replace(self._home, files.WAITING, {"reason": reason, "since": files.utc(time.time())})
            while not self._stop_asked():
                try:
                    alarm.sleep_in_queue(turnstile)
                except Woken:
                    signal.pthread_sigmask(signal.SIG_BLOCK, WAKERS)
                    continue
                break
            while not self._stop_asked():
                if (slot := free_slot(slots_dir, count, before)) is not None:
                    return slot
                alarm.wait(0.1)
            return None
        finally:
            for handle in (*before, turnstile):
                os.close(handle)

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
            how = self._reason(status)
        self._write_end(status, *how)
        self._kernel.remove()

    def _start(self, slot: int) -> int | None:
        """Fork, record the identity of the child, and only then let it execute. Returns its pid, or ``None`` after a
        stop.

        Raises ``_Unstartable`` when the program cannot be executed.
        """
        gate_out, gate_in = os.pipe()
        fail_out, fail_in = os.pipe()
        environment = self._environment()
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
            record = {**child._asdict(), "group": pid, "started_at": files.utc(self._started)}
            files.replace(self._home, files.PROCESS, record)
            self._report_beside(record)
            self._kernel.admit(pid)
            opened = not self._stop_asked()
            if opened:
                os.write(gate_in, GATE_IN_GROUP if self._kernel.in_force else GATE_PLAIN)
        finally:
            os.close(gate_in)  # without the byte, the child leaves without executing
            with open(fail_out, "rb") as failures:
                trouble = failures.read().decode("utf-8", "replace")
            if trouble or not opened:
                os.waitpid(pid, 0)
        if trouble:
            raise _Unstartable(trouble)
        return pid if opened else None

    def _environment(self) -> dict[str, str]:
        """Our own (already allow-listed by whoever started us), the catalogue's, and the process contract."""
        env = dict(os.environ)
        for part in ("env", "contract"):
            given = self._spec.get(part)
            if isinstance(given, dict):
                env.update({str(name): str(value) for name, value in given.items()})
        seconds = self._spec.get("run_timeout_s")
        if isinstance(seconds, (int, float)):
            env["CRAWL_DEADLINE"] = files.utc(time.time() + seconds)
        env["CRAWL_TASK_UID"] = str(self._spec.get("uid"))
        env["CRAWL_LOG_FILE"] = os.path.join(self._folder, files.LOG)
        return env

    def _become_crawler(self, gate: int, fail: int, slot: int, environment: dict[str, str]) -> None:
        """In the child: wait for the gate, then execute the runner. Never returns."""
        try:
            os.setsid()
            word = os.read(gate, 1)
            if not word:
                os._exit(NOT_NEEDED)
            argv = self._spec["argv"]
            if not isinstance(argv, list) or not argv:
                raise ValueError("spec.argv is no list")
            log = self._home.new(files.LOG)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.set_inheritable(slot, True)  # the slot stays taken as long as we or the runner live
            if self._limit is not None and word == GATE_PLAIN:
                # A backstop for what grows too fast to be seen growing; the limit itself is watched on resident memory,
                # because mapped memory (threads, arenas) is always a good deal more than used memory.
                _, hard = resource.getrlimit(resource.RLIMIT_DATA)
                ceiling = 2 * self._limit + 256 * 1024 * 1024
                ceiling = ceiling if hard == resource.RLIM_INFINITY else min(ceiling, hard)
                resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
            self._change_user(log)
            os.chdir(str(self._spec["cwd"]))
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            # The runner begins with stop signals blocked and accepts them when it is ready: none can kill it before.
            signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM, signal.SIGINT})
            environment["CRAWL_SLOT_FD"] = str(slot)  # for the runner alone: what hides from us must not keep it
            os.execve(argv[0], argv, environment)  # noqa: S606 - a vector, never a shell
        except BaseException as error:
            os.write(fail, f"{type(error).__name__}: {error}".encode()[:2000])
        finally:
            os._exit(127)

    def _change_user(self, log: int) -> None:
        """In the child, where the spec names a user: become it, for good, with its main group alone.

        The log is the user's: the runner keeps it within its cap.
        """
        user = self._spec.get("user")
        if isinstance(user, dict):
            os.fchown(log, int(user["uid"]), int(user["gid"]))
            os.setgroups([])
            os.setresgid(*[int(user["gid"])] * 3)
            os.setresuid(*[int(user["uid"])] * 3)

    def _watch(self, pid: int) -> None:
        """Until the runner has ended (it is not reaped yet, so that its number stays reserved)."""
        forced_at: float | None = None
        while True:
            alarm.wait(TICK)
            changed = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if changed is not None and changed.si_code != os.CLD_STOPPED:
                return
            if changed is not None:
                os.kill(pid, signal.SIGCONT)  # a suspended child could not report how the crawler ended
            if forced_at is None and self._stop_asked():
                forced_at = time.monotonic() + self._grace()
                if self._note_signal():
                    os.kill(pid, signal.SIGTERM)
            if forced_at is not None and time.monotonic() >= forced_at:
                self._message = f"It was killed because it still ran {self._grace():g} s after the stop"
                self._kill_group(pid)
            self._watch_memory(pid)

    def _note_signal(self) -> bool:
        """Return whether we have to send the stop signal: nobody did so before. Without a folder nobody else can."""
        try:
            return files.create(self._home, files.SIGNALLED, {"by": "supervisor", "at": files.utc(time.time())})
        except OSError:
            return True

    def _grace(self) -> float:
        grace = self._spec.get("stop_grace_s")
        return float(grace) if isinstance(grace, (int, float)) else 30.0

    def _watch_memory(self, pid: int) -> None:
        if self._kernel.in_force or self._limit is None:
            return
        held = memory_of(pid, self._limit)
        self._peak = max(self._peak, held)
        if held >= self._limit and not self._oom:
            self._oom = True
            self._message = f"It held {held} bytes, the limit is {self._limit} bytes"
            # First record the reason, then act: a look before our end is recorded must not guess.
            with contextlib.suppress(OSError):
                files.create(self._home, files.OOM, {"message": self._message, "peak_memory": held})
            self._kill_group(pid)

    def _kill_group(self, pid: int, rounds: int = ROUNDS) -> None:
        """SIGKILL to the group and to processes that left it. Safe: our child's number is not reused before we reap
        it.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        leader, contract = Identity.of(pid), self._spec.get("contract")
        given = contract if isinstance(contract, dict) else {}
        run = given.get("CRAWL_RUN_ID"), given.get("CRAWL_RUN_UID")
        marks = files.marks(*run, given.get("CRAWL_TASK_ID"), str(given.get("CRAWL_FILES_DIR")))
        for _ in range(rounds):  # something may still be forking
            self._kernel.kill()
            found = {stat.pid: stat for stat in [*members(leader, marks), *self._tree()]}
            if not kill_all(found.values()):
                return
            time.sleep(ROUND)

    def _tree(self) -> list[Stat]:
        """Return the processes below us: all belong to the crawler, which has no others while we live."""
        return below(os.getpid()) if self._adopts else []

    def _reap(self, pid: int) -> int:
        """End all remaining processes of the crawler, then reap it: "ended" means that none of them runs."""
        self._kill_group(pid, LAST_ROUNDS)
        _, status, usage = os.wait4(pid, 0)
        self._peak = max(self._peak, usage.ru_maxrss * 1024, self._kernel.peak())
        if self._adopts:
            self._empty_tree()
        return status

    def _empty_tree(self) -> None:
        """Wait until the kernel says that we have no child any more, dead or alive: that is the proof.

        There is no time limit. A process that cannot be killed (it hangs in the kernel) still runs, and holds its slot.
        """
        with contextlib.suppress(ChildProcessError):
            while True:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                kill_all(self._tree())
                time.sleep(ROUND)

    # --- the end

    def _reason(self, status: int) -> tuple[str, str | None]:
        """Reason in Kubernetes' words, and a sentence where there is more to say."""
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

    def _summary(self) -> dict[str, object]:
        try:
            return files.read(self._home, files.SUMMARY) or {}
        except (files.Garbage, OSError):
            return {}

    def _removed(self) -> bool:
        """Return whether somebody removed our folder.

        If the folder of all tasks is missing too, their disk may come back, perhaps during this check: so we search in
        the folder of tasks that we hold open.
        """
        tasks, *names = self._folder.rsplit(os.sep, 3)  # run, index, attempt
        try:
            there = Held(tasks)
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
                # The runner answers 128 + n for a crawler killed by signal n; its summary distinguishes this from a
                # plain code.
                told = _positive(self._summary().get("signal"))
                number = told if told is not None and exit_code == 128 + told else None
        if self._oom:
            exit_code, number = 137, int(signal.SIGKILL)
        end: dict[str, object] = {
            "exit_code": exit_code,
            "signal": number,
            "reason": reason,
            "message": message,
            "started_at": files.utc(self._started) if status is not None and self._started else None,
            "finished_at": files.utc(time.time()),
            "peak_memory": self._peak or None,
        }
        give_up = time.monotonic() + WRITE_END_SECONDS
        while True:
            try:
                self._home.set_aside(files.END)  # nothing but us may say it, and nothing of the crawler runs any more
                if self._reserve is None or not self._reserve.become(os.path.join(self._within(), files.END), end):
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

    def _report_beside(self, told: dict[str, object] | None) -> None:
        """Outside of our folder, which the crawler may remove: that it began, or its end; ``None``: nothing more."""
        folder, name = os.path.split(str(self._spec.get("started")))
        with contextlib.suppress(OSError):
            if told is None:
                Held(folder).unlink(name)
            else:
                files.replace(Held(folder), name, {**told, "uid": self._spec.get("uid")})

    def _mark(self, change: Callable[[str], None]) -> None:
        mark = self._spec.get("live_mark")
        if isinstance(mark, str):
            change(mark)


def _positive(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def main(argv: list[str]) -> None:
    """Detach, take charge, report that to the waiting starter, and run the task to its end."""
    hide_environment()  # before the fork: the environment holds the crawler's secrets
    folder, expires_at = argv[0], float(argv[1])
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
    os._exit(0)  # somebody waits for our end, and no cleanup is left

"""Child processes: how they start, how they are watched, and how they never outlive their parent.

A child is `python -m vidette._child ROLE CONFIG`, started by plain `subprocess.Popen`, so that nothing
needs a `__main__` guard and the fork is made by the thread that asks for it. It inherits one end of each of
its links by descriptor, and the reading end of a *guard pipe* that never carries data: when its parent is
gone, by whatever death, that pipe ends and the child exits. The parent watches the child by a pidfd.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec

from vidette._log_lines import message_of, name_of

LAST_WORDS_BYTES: Final = 16 * 1024
"""How much of a child's stderr is kept for the error that tells of its death."""
PIPE_BYTES: Final = 64 * 1024
"""What a pipe holds: so much of what a child says is read at once."""
DEFAULT_ENVIRONMENT: Final = {"GOMP_SPINCOUNT": "1000"}
"""What a child finds in its environment unless ours says otherwise. Threads of the compute library then spin
at its barriers for microseconds, not milliseconds. Measured on two cores with two threads and one stream:
25 to 31 tokens a second instead of 35 to 38 with the cores to itself, but 16 to 18 instead of fewer than 4
with one core taken by somebody else."""
PR_SET_PDEATHSIG: Final = 1
FATAL: Final = "Fatal Python error: "
"""How the first line begins of what `faulthandler` says."""


class ChildSpec(msgspec.Struct, kw_only=True, frozen=True):
    """What a child is told on its command line, besides its configuration.

    Args:
        links: descriptor of each link, by the role at its other end.
        guard: reading end of the guard pipe.
        parent: process id of the parent.
        die_with_thread: whether the kernel may kill the child when the thread that forked it ends (only if
            that is the parent's main thread: the end of any other would take the child with it).
        incarnation: how often this role was started before.
        backend: "asyncio" or "trio".
        config: JSON of what the role needs.
    """

    links: dict[str, int]
    guard: int
    parent: int
    die_with_thread: bool
    incarnation: int = 0
    backend: str = "asyncio"
    config: msgspec.Raw


class Look(NamedTuple):
    """What the kernel says of a process.

    Args:
        state: a letter, as `ps` has it; "X" if there is no such process.
        cpu_s: CPU time of all its threads so far.
        rss_bytes: memory of the machine that it holds.
    """

    state: str
    cpu_s: float
    rss_bytes: int = 0


class Child:
    """A child process that runs.

    Args:
        role: "scheduler", or of a detokenizer.
        links: this process's own ends stay with the caller; these are the child's, closed here once it runs.
        config: what the role needs; encoded as JSON.
        backend: event loop library of the child.
        incarnation: how often this role was started before.
        module: its main module, which calls `guard()` first of all.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        role: str,
        links: dict[str, socket.socket],
        config: object,
        *,
        backend: str,
        incarnation: int = 0,
        module: str = "vidette._child",
    ) -> None:
        self.role = role
        guard_read, self._guard = os.pipe()
        stderr_read, stderr_write = os.pipe()
        descriptors = {name: sock.fileno() for name, sock in links.items()}
        spec = ChildSpec(
            links=descriptors,
            guard=guard_read,
            parent=os.getpid(),
            die_with_thread=threading.current_thread() is threading.main_thread(),
            incarnation=incarnation,
            backend=backend,
            config=msgspec.Raw(msgspec.json.encode(config)),
        )
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                [sys.executable, "-P", "-m", module, role, msgspec.json.encode(spec).decode()],
                env=DEFAULT_ENVIRONMENT | os.environ,
                stdin=subprocess.DEVNULL,
                stdout=stderr_write,
                stderr=stderr_write,
                pass_fds=[*descriptors.values(), guard_read],
                # Ctrl-C in a terminal is for the parent; it ends its children in order.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._guard)
            os.close(stderr_read)
            raise
        finally:
            for sock in links.values():
                sock.close()
            os.close(guard_read)
            os.close(stderr_write)
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self._process.kill()
            self._process.wait()
            os.close(self._guard)
            os.close(stderr_read)
            raise
        os.set_blocking(stderr_read, False)
        self._stderr = stderr_read
        self._said = _Tail(LAST_WORDS_BYTES)
        self._echo = _Echo()

    async def run_listener(self) -> None:
        """Keep the tail of what the child says on stderr, and pass it on to ours, until cancelled."""
        while self._read():
            await anyio.wait_readable(self._stderr)

    def _read(self) -> bool:
        """Take what the child has said by now, which its pipe holds; return whether more may come."""
        try:
            said = os.read(self._stderr, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._said.add(said)
        self._echo.add(said)
        return bool(said)

    async def wait_exit(self) -> int:
        """Wait until the child has ended; return its exit status (minus the signal that killed it)."""
        while (status := self._process.poll()) is None:
            await anyio.wait_readable(self._pidfd)
        return status

    def look(self) -> Look:
        """Return what the kernel says of the child."""
        return look_at(self.pid)

    def last_words(self) -> str:
        """Return the last lines the child said on stderr."""
        self._read()
        return self._said.text().strip()

    def kill(self) -> None:
        """End the child at once, if it runs."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Reap the child, killing it if it still runs, and give all descriptors back; idempotent."""
        if self._pidfd < 0:
            return
        self.kill()
        self._process.wait()
        self._read()  # whoever listened may have been cancelled before it heard all
        self._echo.end()
        for descriptor in (self._guard, self._stderr, self._pidfd):
            os.close(descriptor)
        self._pidfd = -1


def look_at(pid: int) -> Look:
    """Return what the kernel says of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return Look("X", 0.0)
    # Behind its name, which may hold anything; times are in ticks, memory is in pages.
    state, *numbers = text.rpartition(") ")[2].split()
    ticks = int(numbers[10]) + int(numbers[11])
    return Look(state, ticks / os.sysconf("SC_CLK_TCK"), int(numbers[20]) * os.sysconf("SC_PAGE_SIZE"))


class _Tail:
    """The last bytes of what was added, from the beginning of a line on if one begins there."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = bytearray()

    def add(self, said: bytes) -> None:
        self._bytes += said
        if len(self._bytes) > self._most:
            del self._bytes[: -self._most]
            begins = self._bytes.find(b"\n") + 1
            if begins < len(self._bytes):
                del self._bytes[:begins]

    def take(self, *, lines: bool) -> str:
        """Take all out, or only the lines that are whole."""
        end = self.length(lines=lines)
        text = self._bytes[:end].decode(errors="replace")
        del self._bytes[:end]
        return text

    def length(self, *, lines: bool) -> int:
        """Return how much there is to take, in bytes."""
        return self._bytes.rfind(b"\n") + 1 if lines else len(self._bytes)

    def text(self) -> str:
        return self._bytes.decode(errors="replace")


class _Echo:
    """Passes on to our stderr what a child says on its own.

    In a daemon thread that lives while there is something to say, since our stderr may be a pipe that nobody
    empties: for what children say, neither a loop, nor the child, nor the end of the program waits for
    whoever reads it; what this process logs itself does wait. What does not fit meanwhile is left out. By
    whole lines, so that those of several processes do not mix.
    """

    def __init__(self) -> None:
        self._unsaid = _Tail(PIPE_BYTES)
        self._lock = threading.Lock()
        self._speaking = False
        self._ended = False

    def add(self, said: bytes) -> None:
        self._tell(said)

    def end(self) -> None:
        """Pass on what is no whole line as well: it will not become one."""
        self._tell(b"", ended=True)

    def _tell(self, said: bytes, *, ended: bool = False) -> None:
        with self._lock:
            self._unsaid.add(said)
            self._ended = self._ended or ended
            if not self._speaking and self._unsaid.length(lines=not self._ended):
                self._speaking = True
                threading.Thread(target=self._speak, name="echo", daemon=True).start()

    def _speak(self) -> None:
        while True:
            with self._lock:
                text = self._unsaid.take(lines=not self._ended)
                if not text:
                    self._speaking = False
                    return
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                sys.stderr.write(text)
                sys.stderr.flush()


def describe_exit(role: str, status: int, last_words: str) -> str:
    """Return a sentence about how a child ended."""
    if status < 0:
        try:
            how = f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            how = f"was killed by signal {-status}"
    else:
        how = f"ended with exit status {status}"
    lines: Sequence[str] = last_words.splitlines()
    # Behind what a crash is come the stacks of all threads.
    fatal = next((line for line in lines if line.startswith(FATAL)), None)
    words = f"; its last words: {fatal or _last_line(role, lines[-1])}" if lines else ""
    return f"the {role} {how}{words}"


def _last_line(role: str, line: str) -> str:
    """Return the last line of what a line says, which may be an object in JSON, or of a traceback."""
    return (message_of(line).splitlines() or [line])[-1].strip().removeprefix(name_of(role))


def guard(spec: ChildSpec) -> None:
    """In a child: exit when the parent is gone. Called once, before anything else.

    A daemon thread waits on the guard pipe and on the parent's pidfd; it needs no event loop, so it works
    whatever the child is doing.
    """
    if spec.die_with_thread:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != spec.parent:  # it died before we could watch it
        os._exit(0)
    threading.Thread(target=_wait_orphaned, args=(spec.guard, spec.parent), name="guard", daemon=True).start()


def _wait_orphaned(pipe: int, parent: int) -> None:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    with contextlib.suppress(OSError):  # no such process: the pipe tells
        poll.register(os.pidfd_open(parent), select.POLLIN)
    poll.poll()
    os._exit(0)

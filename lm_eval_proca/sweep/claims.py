"""Which worker has which cell: the same sweep may run many times at once, on all hosts that share a disk.

A claim is a hidden file `.claim-<cell>-<turn>`, which one process alone can create. It ends with its worker: on the
same machine when the process is gone; on another one when the time of the file, which its worker renews, stands still.
Whoever creates the file of the next turn takes the cell over, so one of all that find a dead claim gets it.
The folder that a worker fills has a name of its own: a worker that was only stalled never writes into another's.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

CLAIM, UNFINISHED = ".claim-", ".unfinished-"
HEARTBEAT_SECONDS = 20.0
EXPIRES_SECONDS = 300.0
"""Far longer than a heartbeat: network file systems show the time of a file up to a minute late."""
POLL_SECONDS = 2.0
"""How often a worker that waits for others looks again."""


@dataclass(frozen=True)
class Worker:
    """The process that has a claim."""

    what: str
    """The cell, for readers."""
    host: str
    pid: int
    since: str
    machine: str | None
    """Machine, boot and process namespace, within which a process number means one process; None if not known."""
    started: str | None
    """When the process started, as the kernel counts: its number may be given to another one later."""
    token: str
    """The end of the name of the folder that this worker fills."""

    @classmethod
    def this(cls, what: str) -> Worker:
        now, pid = time.strftime("%Y-%m-%d %H:%M:%S"), os.getpid()
        return cls(what, socket.gethostname(), pid, now, _machine(), _start_of(pid), uuid4().hex[:8])

    def __str__(self) -> str:
        return f"{self.what}: process {self.pid} on {self.host} since {self.since}"


@dataclass(frozen=True)
class Claim:
    """A cell that belongs to a worker, which is None as long as the file is empty."""

    path: Path
    worker: Worker | None

    @property
    def key(self) -> str:
        return self.path.name.removeprefix(CLAIM).rpartition("-")[0]

    @property
    def turn(self) -> int:
        return int(self.path.name.rpartition("-")[2])

    def is_alive(self) -> bool:
        worker = self.worker
        if worker is not None and worker.machine is not None and worker.machine == _machine():
            return self.path.exists() and _start_of(worker.pid) == worker.started
        try:
            return _time_of_disk(self.path.parent) - self.path.stat().st_mtime < EXPIRES_SECONDS
        except FileNotFoundError:
            return False

    def is_held(self) -> bool:
        """Whether nobody has taken it over: asked by its own worker, which may have been stalled."""
        return _read(self.path) == self.worker

    def folder(self, finished: Path) -> Path:
        """Where its worker fills the folder that will be `finished`."""
        assert self.worker is not None
        return finished.with_name(f"{UNFINISHED}{finished.name}-{self.worker.token}")


def claims_in(home: Path, key: str = "*") -> list[Claim]:
    """All claims in a folder, or those of one cell, earlier turns first; dead ones too."""
    found = [Claim(path, _read(path)) for path in home.glob(f"{CLAIM}{key}-*")]
    return sorted(found, key=lambda claim: (claim.key, claim.turn))


def holders(home: Path) -> dict[str, Worker | None]:
    """The living workers in a folder, by what they have claimed."""
    return {claim.key: claim.worker for claim in claims_in(home) if claim.is_alive()}


def take(home: Path, key: str, what: str) -> Claim | None:
    """Claim a cell for this process, also from a dead worker; None if another one has it."""
    earlier = claims_in(home, key)
    if any(claim.is_alive() for claim in earlier):
        return None
    claim = Claim(home / f"{CLAIM}{key}-{earlier[-1].turn + 1 if earlier else 0}", Worker.this(what))
    try:
        with open(claim.path, "x", encoding="utf-8") as file:
            file.write(json.dumps(asdict(claim.worker)) + "\n")  # type: ignore[arg-type]
    except FileExistsError:
        return None
    except OSError:
        claim.path.unlink(missing_ok=True)
        raise
    others = [other for other in claims_in(home, key) if other.path != claim.path]
    if any(other.turn > claim.turn or other.is_alive() for other in others):  # made since we looked
        release(claim)
        return None
    for dead in earlier:
        if dead.worker is not None:
            for leftover in home.glob(f"{UNFINISHED}*-{dead.worker.token}"):
                _discard(leftover)
        dead.path.unlink(missing_ok=True)
    return claim


def release(claim: Claim) -> None:
    with suppress(OSError):  # a disk that takes no more writes: the claim ends with the process
        if claim.is_held():
            claim.path.unlink(missing_ok=True)


@contextmanager
def kept(claim: Claim) -> Iterator[None]:
    """Renew a claim in the background, and give it back at the end."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(claim.path)  # by the clock of the disk, not of this host

    thread = threading.Thread(target=renew, daemon=True, name=f"heartbeat of {claim.path.name}")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        release(claim)


def sweep_leftovers(home: Path) -> None:
    """Remove what dead workers left.

    A folder is made after its claim and goes before it, so one without a living claim has no worker.
    """
    folders = list(home.glob(f"{UNFINISHED}*"))
    for claim in claims_in(home):
        if not claim.is_alive() and (taken := take(home, claim.key, "what a dead worker left")) is not None:
            release(taken)
    living = {worker.token for worker in holders(home).values() if worker is not None}
    for folder in folders:
        if folder.name.rpartition("-")[2] not in living:
            _discard(folder)


def _discard(folder: Path) -> None:
    """First take its name away: its worker may live after all, and must not finish a folder that is being emptied."""
    nameless = folder.with_name(f"{UNFINISHED}{uuid4().hex}")
    with suppress(FileNotFoundError):
        folder.rename(nameless)
        shutil.rmtree(nameless, ignore_errors=True)


def _read(path: Path) -> Worker | None:
    try:
        return Worker(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # not yet written, or gone
        return None


def _time_of_disk(folder: Path) -> float:
    """Now, by the clock that gives files their times: those of hosts differ."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:  # a folder that we may only look at
        return time.time()


@cache
def _machine() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux
        return None


def _start_of(pid: int) -> str | None:
    """When a process started; None if there is none, or if it only waits to be buried."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]

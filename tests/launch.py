"""Commands on several processes and nodes. Agents of torchrun on loopback are nodes to all code that they start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SECONDS = 1200.0  # generous: machines are slow and shared, and only a hang may fail


def launchers(*, nodes: int = 1, processes: int = 1) -> list[list[str]]:
    """How the command line begins, for each node."""
    if nodes == processes == 1:
        return [[sys.executable]]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}"]
    if nodes == 1:
        return [[*torchrun, "--standalone"]]
    torchrun += [f"--nnodes={nodes}", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    return [[*torchrun, f"--node_rank={node}"] for node in range(nodes)]


def accelerate(processes: int) -> list[str]:
    """The same for `accelerate launch`, with an answer to all that it would ask about.

    Without GPUs it starts one process, whatever --num_processes says, unless it is told --multi_gpu.
    """
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", f"--num_processes={processes}"]
    launch += ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    return launch + ([] if processes == 1 else ["--multi_gpu", f"--main_process_port={free_port()}"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Node:
    """A command that runs, its children, and what they print."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as stream:
            self.process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)

    def said(self, words: str) -> bool:
        return words in self.log.read_text()

    def workers(self) -> list[int]:
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(child) for children in threads for child in children.read_text().split()]

    def kill(self) -> None:
        """All at once, as when the machine is lost."""
        for pid in [*self.workers(), self.process.pid] if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        return self.process.wait(timeout=SECONDS)


@contextmanager
def started(commands: Sequence[Sequence[str]], environment: Mapping[str, str], logs: Path) -> Iterator[list[Node]]:
    """One node per command; none outlives the block."""
    logs.mkdir(exist_ok=True)
    nodes: list[Node] = []
    try:
        for number, command in enumerate(commands):
            nodes.append(Node(command, environment, logs / f"node{number}.log"))
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def wait_until(happened: Callable[[], bool], nodes: Sequence[Node]) -> None:
    """Until the run is where it shall be disturbed."""
    end = time.monotonic() + SECONDS
    while not happened():
        for node in nodes:
            assert node.process.poll() is None, f"ended too early: {node.log.read_text()[-3000:]}"
        assert time.monotonic() < end
        time.sleep(0.1)

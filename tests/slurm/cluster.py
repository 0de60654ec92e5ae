"""A private Slurm in one folder: a controller, two nodes with a pretend GPU each and one without.

Nothing outside the folder is touched: the programs users call are wrapped so that they find this cluster.
"""

import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "sacct")
NODES = {"gpu1": 1, "gpu2": 1, "cpu1": 0}
CONFIGURATION = """\
ClusterName=pretend
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=5
SlurmdTimeout=6
MinJobAge=3600
KillWait=5
TaskProlog={folder}/prolog
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n.spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
"""
# Each step of a job notes where it runs and which GPU it was given.
PROLOG = """\
#!/bin/sh
echo "$SLURM_JOB_ID $SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES-none}}" >> {folder}/steps.txt
"""
WRAPPER = """\
#!/bin/sh
SLURM_CONF={folder}/slurm.conf exec {program} "$@"
"""


def find(program: str) -> str | None:
    """A program, also where the path leaves out the administrator's folders."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def lacking() -> str | None:
    """Why no cluster can be started here; None if one can."""
    missing = [name for name in (*DAEMONS, *CLIENTS) if find(name) is None]
    if missing:
        return f"no Slurm here: {', '.join(missing)} not found (Debian: slurmctld slurmd slurm-client munge)"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "no Slurm executor: pip install -r requirements/slurm.txt"
    return None


def wait_for(what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.2)


class Cluster:
    """Starts and stops the daemons, in a new folder that everybody may enter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Write the configuration, start everything, wait for the nodes."""
        self._write()
        files = (f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed"))
        socket_ = f"--socket={self.folder}/munge.socket"
        self._launch("munged", "--foreground", "--force", socket_, *files, name="munged")
        wait_for("munge", (self.folder / "munge.socket").exists)
        self.repair()

    def repair(self) -> None:
        """Start what does not run, end the jobs that do, wait for the nodes."""
        if "slurmctld" not in self.running:
            self.start_controller()
        for node in NODES:
            if node not in self.running:
                self.start_node(node)
        self.wait_for_nodes()
        self.slurm("scancel", "--user", str(os.getuid()))
        wait_for("jobs to end", lambda: not self.slurm("squeue", "--noheader"))

    def stop(self) -> None:
        """End all jobs and daemons."""
        if "slurmctld" in self.running:
            self.slurm("scancel", "--user", str(os.getuid()))
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.running.clear()
        for pid in self.processes():
            _kill(pid)

    def start_controller(self) -> None:
        """Start slurmctld; it resumes from its saved state."""
        self._launch("slurmctld", "-D", "-f", f"{self.folder}/slurm.conf", name="slurmctld")

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self._launch("slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf", name=node)

    def kill_daemon(self, name: str) -> None:
        """`kill -9` a daemon; jobs live on."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def lose(self, node: str) -> None:
        """A node disappears: its daemon, and all that runs on it."""
        self.kill_daemon(node)
        for pid in self.processes(node):
            _kill(pid)

    def wait_for_nodes(self) -> None:
        """Wait until every node answers."""
        states = ("--noheader", "--Node", "--states=idle,alloc,mix", "--format=%N")
        wait_for("nodes", lambda: set(self.slurm("sinfo", *states).split()) == set(NODES))

    def slurm(self, program: str, *arguments: str) -> str:
        """What one of Slurm's programs prints; empty if it fails, as it does while the controller is away."""
        done = subprocess.run([f"{self.folder}/bin/{program}", *arguments], capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def environment(self) -> dict[str, str]:
        """Variables with which Snakemake finds this cluster."""
        return {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PRETEND_CLUSTER": str(self.folder)}

    def steps(self) -> list[tuple[str, str, str]]:
        """Job, node and GPU of every step that ran."""
        lines = (self.folder / "steps.txt").read_text().splitlines()
        return [(job, node, gpu) for job, node, gpu in map(str.split, lines)]

    def processes(self, node: str | None = None, command: str = "") -> list[int]:
        """What runs on a node, or on all: jobs and Slurm's keepers of them; or those whose command begins like this."""
        return [pid for pid, words in self._found(node) if words.startswith(command)]

    def left(self, seconds: float = 20) -> list[str]:
        """What jobs that ended have left running, though given time to go; Slurm's own programs do not count."""
        end = time.monotonic() + seconds
        while found := [
            f"{pid} {words}" for pid, words in self._found() if not re.match(r"(\S*/)?(slurmstepd|srun)\b", words)
        ]:
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        return found

    def _found(self, node: str | None = None) -> Iterator[tuple[int, str]]:
        nodes = NODES if node is None else (node,)
        for pid, environment, folder, words in _processes():
            job = f"PRETEND_CLUSTER={self.folder}" in environment
            here = any(f"SLURMD_NODENAME={name}" in environment for name in nodes)
            keeper = words.startswith("slurmstepd") and folder in [f"{self.folder}/{name}.spool" for name in nodes]
            if keeper or (job and here):
                yield pid, words

    def _launch(self, program: str, *arguments: str, name: str) -> None:
        path = find(program)
        assert path is not None
        with (self.folder / f"{name}.out").open("ab") as output:
            self.running[name] = subprocess.Popen(
                [path, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf"},
                cwd=self.folder / f"{name}.spool",  # by which a node's keepers of jobs are known
            )  # fmt: skip

    def _write(self) -> None:
        ports = _free_ports(len(NODES) + 1)
        host = socket.gethostname().split(".")[0]
        user = pwd.getpwuid(os.getuid()).pw_name
        lines = [CONFIGURATION.format(folder=self.folder, host=host, user=user, port=ports.pop())]
        gres = []
        for node, gpus in NODES.items():
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports.pop()} CPUs=2"
                         f" RealMemory=64000{' Gres=gpu:1' * gpus}\n")  # fmt: skip
            if gpus:
                gres.append(f"NodeName={node} Name=gpu File=/dev/null\n")
        lines.append("PartitionName=gpu Nodes=gpu[1-2] State=UP\nPartitionName=cpu Nodes=cpu1 Default=YES State=UP\n")
        for name in ("state", "bin", *(f"{daemon}.spool" for daemon in ("munged", "slurmctld", *NODES))):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text("".join(lines))
        (self.folder / "gres.conf").write_text("".join(gres))
        (self.folder / "steps.txt").touch()
        _script(self.folder / "prolog", PROLOG.format(folder=self.folder))
        for client in CLIENTS:
            _script(self.folder / "bin" / client, WRAPPER.format(folder=self.folder, program=find(client)))
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _processes() -> Iterator[tuple[int, list[str], str, str]]:
    """Every process we may look at: its number, variables, working folder and command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_text(errors="replace").split("\0")
            command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            yield int(entry.name), environment, os.readlink(entry / "cwd"), command


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

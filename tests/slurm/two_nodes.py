"""A whole Slurm on one machine: one controller and two nodes of eight cores each, for as long as a `with` lasts.

    munged (own socket and key) <- slurmctld <- slurmd n1, slurmd n2        all in one temporary folder, ports of their own

    python tests/slurm/two_nodes.py                   a shell with this Slurm
    python tests/slurm/two_nodes.py sbatch job.sh     one command with it

Every daemon stays a child of this process, in the foreground, and is ended by its pid. A guard, a process of its own, ends what is left
when this process is gone, however it went: whatever has this Slurm's configuration in its environment, and nothing else. A Slurm that the
machine may have is neither used nor touched.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PACKAGES = ("slurm-wlm", "munge")
GUARD = "--guard"
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd")
START_S, INSTALL_S = 120.0, 600.0

CONFIGURATION = """\
ClusterName=two
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,requeue_delay=0
MpiDefault={mpi}
{plugins}ReturnToService=2
KillWait={kill_wait}
FirstJobId={job}
MinJobAge=300
MessageTimeout=60
BatchStartTimeout=60
SlurmdParameters=config_overrides
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{second}] CPUs=8 RealMemory=2000
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Unavailable(Exception):
    """Slurm cannot be had here; the message says why."""


def programs() -> dict[str, str]:
    """The path of every program of Slurm; daemons lie where PATH seldom looks."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return {name: found for name in PROGRAMS if (found := shutil.which(name, path=path))}


def install() -> None:
    """Install Debian's packages where this user may, without starting their services; raises Unavailable where it cannot."""
    if len(programs()) == len(PROGRAMS):
        return
    missing = sorted(set(PROGRAMS) - set(programs()))
    if os.geteuid() or not shutil.which("apt-get"):
        raise Unavailable(f"{', '.join(missing)} not installed, and only root with apt-get can: apt-get install {' '.join(PACKAGES)}")
    policy = Path("/usr/sbin/policy-rc.d")  # says whether an installed service starts
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "timeout": INSTALL_S, "capture_output": True, "text": True}
        subprocess.run(["apt-get", "update", "-q"], **quiet)  # type: ignore[call-overload]
        done = subprocess.run(["apt-get", "install", "-qy", "--no-install-recommends", *PACKAGES], **quiet)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        raise Unavailable(f"apt-get did not end within {INSTALL_S:g} s") from None
    finally:
        if ours:
            policy.unlink()
    if done.returncode or len(programs()) < len(PROGRAMS):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"apt-get install {' '.join(PACKAGES)} failed: {last}")


class TwoNodes:
    """The running Slurm; `env` is what its commands need. Without `pmi` its srun tells processes nothing of each other."""

    def __init__(self, pmi: bool = True, kill_wait: int = 2):
        self.pmi, self.kill_wait = pmi, kill_wait
        self.daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> TwoNodes:
        self.programs = programs()
        if missing := sorted(set(PROGRAMS) - set(self.programs)):
            raise Unavailable(f"{', '.join(missing)} not installed: apt-get install {' '.join(PACKAGES)}")
        self.folder = Path(tempfile.mkdtemp(prefix="slurm."))
        self.folder.chmod(0o755)
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # it must not hold the pipes of who reads the tests' output
        command = [sys.executable, __file__, GUARD, str(self.folder)]
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **silent)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.end_jobs()
        for daemon in reversed(self.daemons):  # nodes, then the controller, then munged
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        assert self.guard.stdin
        self.guard.stdin.close()
        self.guard.wait()

    def end_jobs(self) -> None:
        """Cancel every job and wait until the nodes are free."""
        if len(self.daemons) < 2 or self.daemons[1].poll() is not None:
            return
        subprocess.run([self.programs["scancel"], "--user", getpass.getuser()], env=self.env, capture_output=True)
        end = time.monotonic() + 30
        while time.monotonic() < end and self.says("squeue", "--noheader"):
            time.sleep(0.2)

    def says(self, program: str, *arguments: str) -> str:
        """The output of one of Slurm's programs."""
        return subprocess.run([self.programs[program], *arguments], env=self.env, capture_output=True, text=True, timeout=60).stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """The fields that `scontrol show job` has for a job."""
        return dict(word.split("=", 1) for word in self.says("scontrol", "--oneliner", "show", "job", job).split() if "=" in word)

    def hurry(self, job: str) -> None:
        """Let a requeued job start soon, not after two minutes; a start in the second of the kill is refused by slurmd."""
        self.wait(job, "PENDING")
        self.says("scontrol", "update", f"JobId={job}", "StartTime=now+3")

    def wait(self, job: str, *states: str, timeout_s: float = 240.0) -> dict[str, str]:
        """Wait until the job is in one of these states (default: an end); raises TimeoutError with its fields where it ended otherwise."""
        states = states or ENDS
        end = time.monotonic() + timeout_s
        while (found := self.state(job)).get("JobState") not in states:
            if found.get("JobState") in ENDS or time.monotonic() > end:
                raise TimeoutError(f"job {job} is not {' or '.join(states)}: {found}")
            time.sleep(0.1)
        return found

    def _start(self) -> None:
        for name in ("munge", "state", "spool/n1", "spool/n2"):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        port, first, second = _free_ports()
        fields: dict[str, Any] = {"host": socket.gethostname().split(".")[0], "user": getpass.getuser(), "folder": self.folder}
        fields |= {"mpi": "pmi2", "plugins": ""} if self.pmi else {"mpi": "none", "plugins": f"PluginDir={self._without_pmi()}\n"}
        # MPICH names its shared memory after job and step, and a killed rank leaves it behind: no id is used twice on this machine.
        fields["job"] = 1 + time.time_ns() // 10**8 % 60_000_000
        conf = self.folder / "slurm.conf"
        conf.write_text(CONFIGURATION.format(**fields, port=port, first=first, second=second, kill_wait=self.kill_wait))
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))}
        self.env = {**outside, "SLURM_CONF": str(conf)}
        munge = [f"--{k}={self.folder}/{v}" for k, v in (("key-file", "key"), ("pid-file", "munge/pid"), ("socket", "munge/socket"))]
        munge += [f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge/seed"]
        self._daemon("munged", "--foreground", *munge)
        self._until(lambda: (self.folder / "munge/socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        self._until(lambda: self.says("squeue", "--version") != "" and self._idle() == 2, "two idle nodes")

    def _without_pmi(self) -> Path:
        """A folder of Slurm's plugins but those of PMI."""
        found = next((p.parent for lib in ("/usr/lib", "/usr/lib64") for p in Path(lib).rglob("select_cons_tres.so")), None)
        if found is None:
            raise Unavailable("Slurm's plugins are not below /usr/lib")
        folder = self.folder / "plugins"
        folder.mkdir()
        for plugin in found.glob("*.so"):
            if not plugin.name.startswith("mpi_") or plugin.name == "mpi_none.so":
                (folder / plugin.name).symlink_to(plugin)
        return folder

    def ranks(self, job: str) -> dict[int, int]:
        """The processes of hpcpar that a job's steps run, {number in the step: pid}."""
        found = {}
        for process in Path("/proc").iterdir():
            try:
                env = dict(w.split(b"=", 1) for w in (process / "environ").read_bytes().split(b"\0") if b"=" in w)
                ours = env.get(b"SLURM_CONF") == self.env["SLURM_CONF"].encode() and env.get(b"SLURM_JOB_ID") == job.encode()
                if ours and b"SLURM_PROCID" in env and b"\0train\0" in (process / "cmdline").read_bytes():
                    found[int(env[b"SLURM_PROCID"])] = int(process.name)
            except (OSError, ValueError):
                continue
        return found

    def _idle(self) -> int:
        return self.says("scontrol", "--oneliner", "show", "nodes").count("State=IDLE ")

    def _daemon(self, program: str, *arguments: str) -> None:
        log = (self.folder / f"{program}.{len(self.daemons)}.out").open("wb")
        with log:
            self.daemons.append(
                subprocess.Popen([self.programs[program], *arguments], env=self.env, stdout=log, stderr=log, start_new_session=True)
            )

    def _until(self, there: Any, what: str) -> None:
        end = time.monotonic() + START_S
        while not there():
            ended = next((d for d in self.daemons if d.poll() is not None), None)
            if ended is not None or time.monotonic() > end:
                logs = "\n".join(f"{p.name}: {p.read_text(errors='replace')[-600:]}" for p in sorted(self.folder.glob("*.[ol]*")))
                raise Unavailable(f"no {what} after a start of Slurm:\n{logs}")
            time.sleep(0.1)


def guard(folder: Path) -> int:
    """Wait until standard input ends, which its writer's end brings about, then end what knows this Slurm and remove its folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    for _ in range(3):  # a step that is killed may just have started another process
        for pid in _knowing(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _knowing(mark: bytes) -> list[int]:
    """Processes with this line in their environment that a daemon of Slurm is or started: commands of the user's are not ended."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                env = (process / "environ").read_bytes().split(b"\0")
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            if mark in env and (name in DAEMONS or any(v.startswith(b"SLURM_JOB_ID=") for v in env)):
                found.append(int(process.name))
    return found


def _free_ports() -> list[int]:
    """Three ports that nobody listens on, the last two in a row."""
    while True:
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            try:
                one.bind(("127.0.0.1", 0))
                two.bind(("127.0.0.1", 0))
                three.bind(("127.0.0.1", two.getsockname()[1] + 1))
            except (OSError, OverflowError):
                continue
            return [s.getsockname()[1] for s in (one, two, three)]


def main() -> int:
    """Run a command, or a shell, with a Slurm of two nodes."""
    if sys.argv[1:2] == [GUARD]:
        return guard(Path(sys.argv[2]))
    try:
        install()
        with TwoNodes(pmi=os.environ.get("TWO_NODES_PMI", "yes") == "yes") as slurm:
            return subprocess.run(sys.argv[1:] or [os.environ.get("SHELL", "sh")], env=slurm.env).returncode
    except Unavailable as e:
        print(f"no Slurm: {e}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())

"""A Slurm cluster of one node, this machine, of Debian's packages: munge, slurmctld, slurmd."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kgym_cli.platforms.servers import Program, free_port
from tests.chaos.parts import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
START_SECONDS = 60.0
# Without cgroups, accounting and plugins of a site. `cred_expire`: a requeued task waits so long.
CONFIG = """\
ClusterName=kgym
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=5,bf_interval=2
MpiDefault=none
ReturnToService=2
KillWait=10
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=256 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


def require_slurm() -> None:
    """Skip the test where Slurm is not installed."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}; ./run installs it on Debian")


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Run the cluster; yield the variables with which commands find it."""
    config = folder / "slurm.conf"
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge" / "key").write_bytes(secrets.token_bytes(128))
    (folder / "munge" / "key").chmod(0o400)
    folder.chmod(0o755)
    (folder / "munge").chmod(0o711)
    config.write_text(
        CONFIG.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            controller_port=free_port(),
            node_port=free_port(),
            user=pwd.getpwuid(os.getuid()).pw_name,
        )
    )
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge/socket"]
    munge += [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    commands = {
        "munged": munge,
        "slurmctld": ["slurmctld", "-D", "-i", "-f", str(config)],
        "slurmd": ["slurmd", "-D", "-f", str(config)],
    }
    variables = {"SLURM_CONF": str(config)}
    with ExitStack() as stack:
        for name, argv in commands.items():
            program = Program(name, argv, folder / f"{name}.out")
            stack.callback(program.stop)
            program.spawn()
            if name == "munged":
                until((folder / "munge" / "socket").exists, START_SECONDS)
        until(lambda: "idle" in slurm(variables, "sinfo", "--noheader"), START_SECONDS)
        yield variables
        slurm(variables, "scancel", f"--user={os.getuid()}", check=False)
        until(lambda: not slurm(variables, "squeue", "--noheader"), START_SECONDS)


def slurm(variables: dict[str, str], *words: str, check: bool = False) -> str:
    """Run one of Slurm's own commands; return what it prints."""
    done = subprocess.run(
        words,
        env={**os.environ, **variables},
        capture_output=True,
        check=check,
        text=True,
        timeout=60,
    )
    return done.stdout

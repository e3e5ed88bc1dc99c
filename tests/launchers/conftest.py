"""A Slurm of one node for one test session, with a folder, a key and ports of its own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hooks.conftest import clean_environment, untraced
from tests.patience import PATIENCE_S

# Debian keeps daemons where only root looks for programs.
os.environ["PATH"] += f"{os.pathsep}/usr/sbin"

PROGRAMS = "munged slurmctld slurmd srun sbatch mpirun.openmpi mpiexec.hydra"
collect_ignore_glob = [] if all(map(shutil.which, PROGRAMS.split())) else ["test_*.py"]
"""They run by `make test-launchers`, which fails where a program lacks."""

Go = Callable[..., subprocess.CompletedProcess[str]]

CONFIGURATION = """
ClusterName=scratch
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CryptoType=crypto/munge
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/control.pid
SlurmdPidFile={folder}/node.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=one NodeAddr=127.0.0.1 NodeHostname={host} Port={node_port} CPUs=8
PartitionName=all Nodes=one Default=YES State=UP OverSubscribe=FORCE
"""


@pytest.fixture(scope="session")
def slurm() -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands find it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o400)
        (folder / "spool").mkdir()
        config = folder / "slurm.conf"
        config.write_text(
            CONFIGURATION.format(
                host=socket.gethostname(), user=getpass.getuser(), folder=folder,
                control_port=free_port(), node_port=free_port(),
            )
        )  # fmt: skip
        files = {"key": "key-file", "munge": "socket", "pid": "pid-file", "seed": "seed-file"}
        paths = [f"--{option}={folder / name}" for name, option in files.items()]
        daemons = [
            # By force: a folder for temporary files is less private than it wants.
            ["munged", "--foreground", "--force", *paths, f"--log-file={folder}/log"],
            ["slurmctld", "-D", "-f", str(config)],
            ["slurmd", "-D", "-N", "one", "-f", str(config)],
        ]
        said = stack.enter_context(open(folder / "said", "w"))
        environment = clean_environment(SLURM_CONF=str(config))
        for words in daemons:
            daemon = subprocess.Popen(words, env=environment, stdout=said, stderr=said)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
        until = time.monotonic() + PATIENCE_S
        asked = ("sinfo", "--noheader", "--format=%T")
        while untraced(*asked, SLURM_CONF=str(config)).stdout.strip() != "idle":
            dead = time.monotonic() > until
            assert not dead, (folder / "said").read_text()
            time.sleep(0.2)
        yield {"SLURM_CONF": str(config)}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

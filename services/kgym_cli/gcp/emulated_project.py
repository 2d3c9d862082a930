"""A project of Google Cloud on this machine, for `kgym gcp --emulated`: it lasts between commands.

Its server is a process (`python -m tests.google.cloud_project`, in a checkout only) that the first
`up` starts and the last `down` ends. Its hosts are programs of this machine, which end with it.
All that it knows is in its folder in the data folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kgym.errors import InfrastructureError
from kgym_cli import extras
from kgym_cli.platforms.running_platform import is_taken, running

START_SECONDS = 120.0
_POLL_SECONDS = 0.05
# How its hosts start kgym: a worker ends with its host.
PROGRAM = f"setpriv --pdeathsig=KILL {sys.executable} -m kgym_cli"


@dataclass(frozen=True, slots=True)
class EmulatedProject:
    """A project that runs."""

    folder: Path
    url: str
    """Of the server that stands for the cloud."""

    @property
    def scheduler(self) -> str:
        """Where the scheduler of its host listens."""
        return (self.folder / "scheduler").read_text()

    def look(self) -> dict[str, Any]:
        """Return the server's process, all that is there, and the processes of hosts."""
        answer = httpx.get(f"{self.url}/emulated", timeout=60, trust_env=False)
        state: dict[str, Any] = answer.raise_for_status().json()
        return state

    def await_scheduler(self) -> None:
        """Wait until the scheduler answers; raise InfrastructureError if it does not in time."""
        ends = time.monotonic() + START_SECONDS
        url = f"{self.scheduler}/healthz"
        while time.monotonic() < ends:
            try:
                httpx.get(url, timeout=5, trust_env=False).raise_for_status()
            except httpx.HTTPError:
                time.sleep(_POLL_SECONDS)
            else:
                return
        raise InfrastructureError(
            "scheduler_failed", f"the scheduler does not answer: see {self.folder / 'hosts'}"
        )

    def end(self) -> list[str]:
        """End it if nothing is there; return what is.

        Raises InfrastructureError `cloud_left` if a host's process, or the server, does not end.
        """
        state = self.look()
        if state["left"]:
            left: list[str] = state["left"]
            return left
        if state["processes"]:
            raise InfrastructureError("cloud_left", f"hosts still run: {state['processes']}")
        os.kill(state["pid"], signal.SIGTERM)
        ends = time.monotonic() + START_SECONDS
        while is_taken(self.folder):
            if time.monotonic() > ends:
                raise InfrastructureError("cloud_left", f"the server {state['pid']} does not end")
            time.sleep(_POLL_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        return []


def forget(data: Path, project: str) -> None:
    """Remove what a project has left whose server was killed: its hosts have ended with it."""
    folder = _folder(data, project)
    if not is_taken(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _folder(data: Path, project: str) -> Path:
    return data / "emulated-projects" / project


def find(data: Path, project: str) -> EmulatedProject | None:
    """Return the project, if it runs."""
    folder = _folder(data, project)
    there = running(folder)
    return EmulatedProject(folder, there.url) if there is not None else None


def start(data: Path, project: str) -> EmulatedProject:
    """Return the project; start it if it does not run."""
    checkout = extras.require_checkout("--emulated")
    folder = _folder(data, project)
    folder.mkdir(parents=True, exist_ok=True)
    process: subprocess.Popen[bytes] | None = None
    ends = time.monotonic() + START_SECONDS
    while (there := find(data, project)) is None:
        if not is_taken(folder) and (process is None or process.poll() is not None):
            if time.monotonic() > ends or (process is not None and process.returncode):
                raise InfrastructureError(
                    "server_failed", f"the emulated project did not start: see {folder / 'log'}"
                )
            process = _spawn(checkout, folder)
        time.sleep(_POLL_SECONDS)
    return there


def _spawn(checkout: Path, folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.google.cloud_project", str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=checkout,
            start_new_session=True,
        )

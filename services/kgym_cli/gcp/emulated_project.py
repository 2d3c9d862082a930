"""An emulated Google Cloud project for `kgym gcp --emulated`, which outlives single commands.

Its server is a process (`python -m tests.google.cloud_project`, in a checkout only) that the first
`up` starts and the last `down` ends. Its hosts are processes of this machine and end with it. Its
state is a subfolder of the data folder.
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
# Command with which hosts start kgym. The kernel kills a worker when its host ends.
PROGRAM = f"setpriv --pdeathsig=KILL {sys.executable} -m kgym_cli"


@dataclass(frozen=True, slots=True)
class EmulatedProject:
    """A running project."""

    folder: Path
    url: str
    """URL of the server that emulates the cloud."""

    @property
    def scheduler(self) -> str:
        """URL of its host's scheduler."""
        return (self.folder / "scheduler").read_text()

    def look(self) -> dict[str, Any]:
        """Return the server's process id, existing resources, and the hosts' processes."""
        answer = httpx.get(f"{self.url}/emulated", timeout=60, trust_env=False)
        state: dict[str, Any] = answer.raise_for_status().json()
        return state

    def await_scheduler(self) -> None:
        """Wait until the scheduler answers; raise InfrastructureError `scheduler_failed`."""
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
        """End the project if it is empty; otherwise return what is left in it.

        Raises InfrastructureError `cloud_left` if a host's process or the server does not end.
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
    """Remove the folder of a project whose server was killed; its hosts ended with the server."""
    folder = _folder(data, project)
    if not is_taken(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _folder(data: Path, project: str) -> Path:
    return data / "emulated-projects" / project


def find(data: Path, project: str) -> EmulatedProject | None:
    """Return the project if it is running."""
    folder = _folder(data, project)
    there = running(folder)
    return EmulatedProject(folder, there.url) if there is not None else None


def start(data: Path, project: str) -> EmulatedProject:
    """Return the project; start it if it is not running."""
    checkout = extras.require_checkout("--emulated")
    folder = _folder(data, project)
    folder.mkdir(parents=True, exist_ok=True)
    process: subprocess.Popen[bytes] | None = None
    ends = time.monotonic() + START_SECONDS
    while (there := find(data, project)) is None:
        # Two commands may start the project at the same time: the server that gets the folder's
        # lock wins, the other exits, and both commands use the winner.
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
            # A session of its own: Ctrl-C in the terminal of `up` must not end the project.
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=checkout,
            start_new_session=True,
        )

#!/usr/bin/env python3
"""The programs of an environment: copies of this file, distinguished by their names.

/KBDr/initialize   writes the crash report, the reproducer and instructions to /root
/KBDr/run_kernel   tries the changes in /linux on a kernel, and prints the result
/KBDr/start        initializes, forwards 127.0.0.1 to the model's proxy if there is one, and runs
                   the agent given as arguments. In a container, it then writes patch.txt and
                   log.txt; for a sandbox, the campaign does so from outside

Names, paths and answers are those of Live-kBench's kEnv (docs/kEnv.md, kenv/initialize,
kenv/run_kernel and kclient/agentic.py, commit 8849209). KENV_KGYM_ENDPOINT is the address of the
campaign's door: unix:PATH, or tcp:HOST:PORT:SECRET.
"""

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

HOME = Path("/root")
TREE = Path("/linux")
OUTPUT = Path("/KBDr/output")
MIRROR = Path("/KBDr/mirror")
# Maximum bytes of an answer.
MOST = 64 << 20
NOT_ALLOWED = "Stateful edit is not allowed in the current environment."


def ask(**call: str) -> dict[str, Any]:
    """Send a call to the campaign and return its answer; both are a line of JSON."""
    kind, _, place = os.environ["KENV_KGYM_ENDPOINT"].partition(":")
    secret = ""
    if kind == "unix":
        door = socket.socket(socket.AF_UNIX)
        door.connect(place)
    else:
        host, port, secret = place.removeprefix("//").rsplit(":", 2)
        door = socket.create_connection((host, int(port)))
    with door, door.makefile("rb") as answers:
        door.sendall(json.dumps({"secret": secret, **call}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(answers.readline(MOST))
    return answer


def initialize() -> int:
    """Write the bug's files; in a container without a tree, clone it from the mirror."""
    bug = ask(call="bug")
    (HOME / "report.txt").write_text(bug["report"])
    (HOME / "reproducer.txt").write_text(bug["reproducer"])
    (HOME / "task.txt").write_text(bug["task"])
    (HOME / "instructions.txt").write_text(bug["instructions"])
    if not (TREE / "Makefile").exists() and bug["repository"]:
        _clone(bug["repository"], bug["commit"])
    return 0


def _clone(repository: str, commit: str) -> None:
    mirrors = json.loads((MIRROR / "map.json").read_text())
    if repository not in mirrors:
        raise SystemExit(f"No mapping found for git URL {repository}")
    _git(Path("/"), "clone", "--no-checkout", str(MIRROR / mirrors[repository]), str(TREE))
    _git(TREE, "remote", "set-url", "origin", repository)
    _git(TREE, "checkout", "--quiet", commit)


def run_kernel() -> int:
    """Try the changes and print the result, or a message if this is not allowed."""
    if words := sys.argv[1:]:  # a kernel takes minutes, and their number is limited
        print("run_kernel takes no arguments: it tries the changes in /linux on a kernel")
        return 0 if words in (["-h"], ["--help"]) else 2
    if json.loads(os.environ.get("KENV_STATEFUL_EDIT", "false").lower()) is not True:
        print(NOT_ALLOWED)
        return 0
    answer = ask(call="run_kernel", diff=base64.b64encode(_changes()).decode())
    for name, text in answer["files"].items():
        if text is None:
            (HOME / name).unlink(missing_ok=True)
        else:
            (HOME / name).write_text(text)
    print(answer["text"], end="\n\n")  # as the published one ends
    return 0


def _base() -> list[str]:
    """Return the recorded base commit of the changes, if any: agents may commit."""
    done = subprocess.run(
        ["git", "config", "kgym.base"], cwd=TREE, capture_output=True, check=False, text=True
    )
    return [done.stdout.strip()] if done.stdout.strip() else []


def _git(folder: Path, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=folder, stdout=subprocess.PIPE, check=True).stdout


def start() -> int:
    """Run the agent; return its exit status."""
    initialize()
    if bridge := os.environ.get("KENV_MODEL_BRIDGE"):
        port, _, place = bridge.partition(":")
        listening = socket.create_server(("127.0.0.1", int(port)))
        threading.Thread(target=_serve, args=(listening, place), daemon=True).start()
    # In a sandbox, the campaign reads output and patch from outside.
    if os.environ["KENV_KGYM_ENDPOINT"].startswith("unix:"):
        return subprocess.run(sys.argv[1:], cwd=TREE, check=False).returncode
    with (OUTPUT / "log.txt").open("wb") as log:
        argv = sys.argv[1:]
        done = subprocess.run(argv, cwd=TREE, stdout=log, stderr=log, check=False)
    if not (OUTPUT / "patch.txt").exists():
        (OUTPUT / "patch.txt").write_bytes(_changes())
    return done.returncode


def _changes() -> bytes:
    """Return the changes in the tree, including new files and commits."""
    _git(TREE, "add", "-A")
    return _git(TREE, "diff", "--cached", *_base())


def _serve(listening: socket.socket, place: str) -> None:
    while True:
        near, _ = listening.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(place)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=pair, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


PROGRAMS = {"initialize": initialize, "run_kernel": run_kernel, "start": start}

if __name__ == "__main__":
    sys.exit(PROGRAMS[Path(sys.argv[0]).name]())

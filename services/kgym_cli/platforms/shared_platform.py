"""The platform that commands share: a process from the first command to the last.

A process of its own, as running VMs cannot change their parent: no command could hand the platform
to another one. It has its own session, so that Ctrl-C or the end of a terminal does not end the
platform of other commands. It exits when no client is left (`platform_clients`).
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from kgym.errors import InfrastructureError, KgymError, UserError
from kgym_cli import extras
from kgym_cli.platforms.platform_clients import Clients
from kgym_cli.platforms.running_platform import Running, running

START_SECONDS = 60.0
# At this size the log is rotated; one old file is kept.
LOG_BYTES = 1 << 20
_POLL_SECONDS = 0.05


def platform_of(data: Path) -> Running:
    """Return the data folder's platform; start one if necessary.

    The caller must have joined the clients, otherwise the platform might end at once.
    """
    limit = time.monotonic() + START_SECONDS
    while (platform := running(data)) is None:
        try:
            _start(data)
        except UserError as error:
            # Another command was faster: its platform will listen soon.
            if error.reason != "data_in_use" or time.monotonic() > limit:
                raise
            time.sleep(_POLL_SECONDS)
    return platform


def _start(data: Path) -> None:
    """Start a platform; return once it listens, or raise its error."""
    extras.require(*extras.ONE_MACHINE)
    log = _log(data)
    with log.open("a") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "kgym_cli.platforms.shared_platform", str(data.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
        )
    process.returncode = 0  # not reaped: it may outlive this process for other commands
    assert process.stdout is not None
    with process.stdout as answers:
        ready, _, _ = select.select([answers], [], [], START_SECONDS)
        answer = answers.readline() if ready else b""
    if not ready:
        raise InfrastructureError("platform_slow", f"no start in {START_SECONDS:g} s: see {log}")
    if not answer:
        last = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
        raise InfrastructureError("platform_ended", f"the platform did not start: {last} ({log})")
    problem: dict[str, Any] = json.loads(answer)
    if problem:
        family = UserError if problem["cause"] == UserError.cause else InfrastructureError
        raise family(problem["reason"], problem["message"])


def _log(data: Path) -> Path:
    """Return the platforms' log file, rotated if it is large."""
    path = data / "log" / "platform.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".old"))
    return path


def main() -> None:
    """Run the platform on the data folder in argv[1] until no client is left."""
    # Through SystemExit, so that the platform's context releases VMs and builds.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Imported late: `platform_of`, which every command imports, does not need these.
    from kgym.host import process_logs  # noqa: PLC0415
    from kgym_cli.platforms.embedded_platform import Platform  # noqa: PLC0415
    from kgym_cli.platforms.process import settle  # noqa: PLC0415
    from kgym_cli.settings import settings  # noqa: PLC0415

    data = Path(sys.argv[1])
    process_logs.configure(level=logging.WARNING)
    try:
        with Platform(data, work=False, stays=False, syzkaller=settings().syzkaller) as platform:
            _answer({})
            settle()
            clients = Clients(data)
            while platform.lives and not clients.gone():
                if clients.work():
                    platform.work()
                time.sleep(_POLL_SECONDS)
    except KgymError as error:
        _answer({"cause": error.cause, "reason": error.reason, "message": error.message})
    except Exception:  # noqa: BLE001 - this is the end of the process
        traceback.print_exc()
    finally:
        # A regular exit would wait for threads whose work is no longer needed.
        sys.stderr.flush()
        os._exit(0)


def _answer(problem: dict[str, str]) -> None:
    """Report start or failure to the starting command; send later output to the log."""
    # That command may have ended, while others need the platform.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(problem).encode() + b"\n")
    os.dup2(2, 1)


if __name__ == "__main__":
    main()

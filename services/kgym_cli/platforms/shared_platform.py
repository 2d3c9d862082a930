"""The platform that commands share: a process of its own, from the first command to the last.

It has a session of its own, so that what ends a command, be it Ctrl-C, SIGKILL or the end of
its terminal, does not end the platform of the others; and it ends by itself when no command is
left (`clients`).
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
# From this size on, the log begins anew; the one before is kept.
LOG_BYTES = 1 << 20
_POLL_SECONDS = 0.05


def platform_of(data: Path) -> Running:
    """Return the platform that has the data folder; start one if there is none.

    The caller has joined the clients, or it might end at once.
    """
    limit = time.monotonic() + START_SECONDS
    while (platform := running(data)) is None:
        try:
            _start(data)
        except UserError as error:
            # Another command was quicker, and its platform will listen soon.
            if error.reason != "data_in_use" or time.monotonic() > limit:
                raise
            time.sleep(_POLL_SECONDS)
    return platform


def _start(data: Path) -> None:
    """Start a platform; return once it listens, or raise what keeps it from that."""
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
    process.returncode = 0  # not waited for: it outlives this process if other commands need it
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
    """Return the file for what platforms say."""
    path = data / "log" / "platform.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".old"))
    return path


def main() -> None:
    """Run the platform on the data folder that is named until no client is left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # What follows takes a second to import, which those who start it need not do.
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
        # Python's own end would wait for threads whose work is no longer needed.
        sys.stderr.flush()
        os._exit(0)


def _answer(problem: dict[str, str]) -> None:
    """Tell whoever has started this that it listens, or why not; what comes later, tell the log."""
    with contextlib.suppress(
        BrokenPipeError
    ):  # that command has ended; other commands may have come
        os.write(1, json.dumps(problem).encode() + b"\n")
    os.dup2(2, 1)


if __name__ == "__main__":
    main()

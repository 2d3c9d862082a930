"""Commands in processes that are forked from one with the command line imported.

A command takes 0.4 s of a core to import, and a test has many.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("tests.cli.forked", "kgym_cli.program", "kgym_cli.output.answer", "kgym.client"),
        *("kgym_cli.commands.job", "kgym_cli.commands.bug_trial", "kgym.client.client"),
    ]
)


def run(
    words: Sequence[str], env: Mapping[str, str], stdin: bytes, limit: float
) -> tuple[int, bytes, bytes]:
    """Run `kgym`; return its status, stdout and stderr."""
    with tempfile.TemporaryDirectory(prefix="kgym-command-") as folder:
        files = [Path(folder, name) for name in ("in", "out", "err")]
        files[0].write_bytes(stdin)
        process = _CONTEXT.Process(target=_command, args=(words, dict(env), os.getcwd(), files))
        process.start()
        process.join(limit)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(words), limit)
        return process.exitcode, files[1].read_bytes(), files[2].read_bytes()


def _command(
    words: Sequence[str], env: Mapping[str, str], folder: str, files: Sequence[Path]
) -> None:
    os.chdir(folder)
    for number, file in enumerate(files):
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the library has put /dev/null there
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["kgym", *words]
    from kgym_cli.main import main  # noqa: PLC0415 - it changes how signals are handled

    main()

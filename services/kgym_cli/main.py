"""Where the `kgym` command begins."""

import locale
import os
import signal
import sys


def main() -> None:
    """Run the command line; the exit status tells whose error it was."""
    # What is imported now takes a while, and leaves nothing to tidy up: Ctrl-C just ends it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _use_utf_8()
    from kgym_cli.program import run  # noqa: PLC0415

    sys.exit(run())


def run_kernel() -> None:
    """Be `kgym run-kernel`: one word, for agents."""
    sys.argv.insert(1, "run-kernel")
    main()


def _use_utf_8() -> None:
    """Begin again where the locale has another encoding: the files that are read are in UTF-8.

    The terminal's stays, and what it lacks becomes a `?`.
    """
    encoding = locale.getencoding()
    if not sys.flags.utf8_mode and encoding.upper().replace("_", "-") not in {"UTF-8", "UTF8"}:
        os.environ.setdefault("PYTHONIOENCODING", f"{encoding}:replace")
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606

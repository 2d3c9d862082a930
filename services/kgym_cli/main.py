"""Entry points of the commands `kgym` and `run_kernel`."""

import locale
import os
import signal
import sys


def main() -> None:
    """Run the command line; the exit status tells user errors from platform errors."""
    # Imports take a while and need no cleanup: until they are done, Ctrl-C simply kills.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _use_utf_8()
    from kgym_cli.program import run  # noqa: PLC0415

    sys.exit(run())


def run_kernel() -> None:
    """Run `kgym run-kernel`: a single word, for agents."""
    sys.argv.insert(1, "run-kernel")
    main()


def _use_utf_8() -> None:
    """Restart in UTF-8 mode if the locale has another encoding, as input files are in UTF-8.

    The terminal's encoding is kept; characters that it lacks become `?`.
    """
    encoding = locale.getencoding()
    if not sys.flags.utf8_mode and encoding.upper().replace("_", "-") not in {"UTF-8", "UTF8"}:
        os.environ.setdefault("PYTHONIOENCODING", f"{encoding}:replace")
        # UTF-8 mode (PEP 540) can only be chosen before the interpreter starts.
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606

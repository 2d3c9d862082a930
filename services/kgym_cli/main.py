"""Where the `kgym` command begins."""

import signal
import sys


def main() -> None:
    """Run the command line; the exit status tells whose error it was."""
    # What is imported now takes a while, and leaves nothing to tidy up: Ctrl-C just ends it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kgym_cli.program import run  # noqa: PLC0415

    sys.exit(run())

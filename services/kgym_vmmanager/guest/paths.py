"""Where a guest has what runs in it."""

PROGRAM = "/kgym/reproducer"
"""Where the guest has the program that it is to run."""


RUNNER = "/kgym/run"
"""Where the guest has the program that runs the reproducer."""


TRACER = "/kgym/trace"
"""Where it has the program that tells the reproducer's system calls."""


CAPTURE = "/kgym/capture"
"""Where the capture kernel's image has its process 1."""


MAKEDUMPFILE = "makedumpfile"
"""The program (and the Debian package) that filters a crashed kernel's memory."""

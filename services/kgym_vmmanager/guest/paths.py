"""Where a guest has what runs in it."""

PROGRAM = "/kgym/reproducer"
"""Where the guest has the program that it is to run."""


RUNNER = "/kgym/run"
"""Where the guest has the program that runs the reproducer."""


TRACER = "/kgym/trace"
"""Where it has the program that tells the reproducer's system calls."""


NETWORK = "/kgym/network"
"""Where it has the script that gives it its address."""


ADDRESS = "/run/kgym_net"
"""The address that it has, as the kernel's command line may say it: `kgym_net=…`."""


CAPTURE = "/kgym/capture"
"""Where the capture kernel's image has its process 1."""


MAKEDUMPFILE = "makedumpfile"
"""The program (and the Debian package) that filters a crashed kernel's memory."""

"""Where a guest has what runs in it."""

# Where the guest has the program that it is to run.
PROGRAM = "/kgym/reproducer"


# Where the guest has the program that runs the reproducer.
RUNNER = "/kgym/run"


# Where it has the program that tells the reproducer's system calls.
TRACER = "/kgym/trace"


# Where it has the script that gives it its address.
NETWORK = "/kgym/network"


# The address that it has, as the kernel's command line may say it: `kgym_net=…`.
ADDRESS = "/run/kgym_net"


# Where the capture kernel's image has its process 1.
CAPTURE = "/kgym/capture"


# The program (and the Debian package) that filters a crashed kernel's memory.
MAKEDUMPFILE = "makedumpfile"

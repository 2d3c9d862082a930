"""Paths in a guest."""

# The program that the guest runs.
PROGRAM = "/kgym/reproducer"
# The text of a program of syzkaller's.
PROGRAM_TEXT = "/kgym/program.syz"
# The runner, which starts the program again and again.
RUNNER = "/kgym/run"
# The tracer of the program's system calls.
TRACER = "/kgym/trace"
# The engine of variants, the dictionary that it uses, and that of the unpatched kernel.
VARIER = "/kgym/vary"
WORDS = "/kgym/words"
WORDS_BEFORE = "/kgym/words-before"
# Orders for the engine, for a variant that is run by hand.
ORDERS = "/kgym/orders"
# The folder of the programs of the kernel's own tests.
TESTS = "/kgym/tests"
# The script that configures the network.
NETWORK = "/kgym/network"
# The file with the guest's address, in the form of `kgym_net=` on the kernel's command line.
ADDRESS = "/run/kgym_net"
# Process 1 of the capture kernel's image.
CAPTURE = "/kgym/capture"
# The program, and Debian package, that filters a crashed kernel's memory.
MAKEDUMPFILE = "makedumpfile"

"""Crashes without a kernel bug ("noise"): a list, with the reasons.

Noise does not count as a crash unless it is what was looked for. A run that ends in it has not
survived either.
"""

_SLOW = "a guest that an emulator or a busy host slows down stalls without a bug"
_PROGRAM = "the test program failed, not the kernel"
_MACHINE = "the machine went away, for whatever reason"

# The beginning of a title, and why such a crash need not be the kernel's fault.
NOISE = (
    # syzkaller's executor, and Go programs
    ("SYZFAIL", _PROGRAM),
    ("SYZFATAL", _PROGRAM),
    ("go runtime error", _PROGRAM),
    ("panic:", _PROGRAM),
    # written by syzkaller's monitor of the machine
    ("lost connection to test machine", _MACHINE),
    ("no output from test machine", _MACHINE),
    ("test machine is not executing programs", _MACHINE),
    ("unexpected kernel reboot", _MACHINE),
    # watchdogs
    ("INFO: rcu detected stall", _SLOW),
    ("INFO: rcu_", _SLOW),
    ("BUG: soft lockup", _SLOW),
    ("BUG: hard lockup", _SLOW),
    ("BUG: workqueue lockup", _SLOW),
    ("kernel panic: Out of memory", "the guest has too little memory for the program"),
    ("kernel panic: System is deadlocked on memory", "the guest has too little memory"),
    ("kernel panic: VFS: Unable to mount root fs", "the guest image was not found"),
)


def noise(title: str) -> str | None:
    """Return why a crash of this title need not be a bug; None if it is not known as noise."""
    return next((why for start, why in NOISE if title.startswith(start)), None)

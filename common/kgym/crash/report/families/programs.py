"""Messages of the test programs: memory leaks, and their own failures."""

from kgym.crash.report.families.blame_rules import LEAKED
from kgym.crash.report.families.family import Family, Format

LEAKED_OBJECT = Family(
    # mm/kmemleak.c: print_unreferenced(), as programs copy it without a heading
    "unreferenced object",
    (
        Format(
            r"unreferenced object 0x[0-9a-f]+ \(size [0-9]+\):",
            "memory leak in {frame}",
            walk=LEAKED,
            has_stack=False,
        ),
    ),
    follows=True,
)

PROGRAMS = (
    LEAKED_OBJECT,
    # Go's runtime
    Family(
        "fatal error:",
        (Format(r"fatal error:", "go runtime error", has_stack=False),),
        reject=r"ALSA|fatal error: cannot create timer",
    ),
    # syzkaller's executor and tools
    Family("SYZFAIL:", (Format(r"SYZFAIL:(?P<what>.*)", "SYZFAIL:{what}", has_stack=False),)),
    Family(
        "SYZFATAL:",
        (Format(r"SYZFATAL:(?P<what>.*)", "SYZFATAL:{what}", alt=("SYZFATAL",), has_stack=False),),
    ),
    Family(
        "panic:",
        (Format(r"panic:(?P<what>.*)", "panic:{what}", has_stack=False),),
        # skb_panic: and sysctls are no panics
        reject=r"[\w.]panic:|(?:xlog|evtlog)_status:",
    ),
)

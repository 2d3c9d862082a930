"""The sanitizers: KASAN, KMSAN, KCSAN, KFENCE, UBSAN."""

from kgym.report.families.family import Family, Format
from kgym.report.families.walks import (
    BAD_ACCESS,
    CALL_TRACE,
    IN_TRACE,
    MEMORY,
)
from kgym.report.model import CrashType
from kgym.report.walk import TRACE, Walk, pattern

_SIZE = r"(?P<rw>Read|Write) (?:of size [0-9]+|at addr [0-9a-f]+)"
_IN_FUNCTION = Walk((pattern(r"BUG: KASAN: [a-z-]+ in {FUNC}"), CALL_TRACE, TRACE))

KASAN = (
    # mm/kasan/report.c: print_error_description()
    Format(
        r"BUG: KASAN: (?:double-free or invalid-free|double-free|invalid-free) in",
        "KASAN: invalid-free in {frame}",
        alt=("invalid-free in {frame}",),
        walk=Walk((CALL_TRACE, TRACE), skip=MEMORY),
        type=CrashType.KASAN_INVALID_FREE,
    ),
    Format(
        r"BUG: KASAN: (?P<kind>[a-z-]+) in {FUNC}",
        "KASAN: {kind} {rw} in {frame}",
        alt=BAD_ACCESS,
        then=(_SIZE,),
        walk=_IN_FUNCTION,
    ),
    Format(
        r"BUG: KASAN: (?P<kind>[a-z-]+) in (?:0x)?[0-9a-f]{8,}",
        "KASAN: {kind} {rw} in {frame}",
        alt=BAD_ACCESS,
        then=(_SIZE,),
        walk=IN_TRACE,
    ),
    # kernels up to 4.9 name no function here
    Format(
        r"BUG: KASAN: (?P<kind>[a-z-]+) on address",
        "KASAN: {kind} {rw} in {frame}",
        alt=BAD_ACCESS,
        then=(_SIZE, r"Call Trace"),
        walk=IN_TRACE,
    ),
    Format(
        r"BUG: KASAN: (?P<kind>[a-z-]+) on address",
        "KASAN: {kind} {rw}",
        then=(_SIZE,),
        intact=False,
    ),
    Format(r"BUG: KASAN: (?P<what>.*)", "KASAN: {what}", intact=False),
)

_BESIDES_KFENCE = Walk((pattern(r"BUG: KFENCE: [a-z -]+ in {FUNC}"), TRACE), skip=("kfence",))
KFENCE = (
    # mm/kfence/report.c: kfence_report_error()
    Format(
        r"BUG: KFENCE: (?P<kind>[a-z-]+(?: (?:read|write))?) in",
        "KFENCE: {kind} in {frame}",
        alt=BAD_ACCESS,
        walk=_BESIDES_KFENCE,
        has_stack=False,
    ),
    Format(
        r"BUG: KFENCE: (?P<kind>invalid free) in",
        "KFENCE: {kind} in {frame}",
        alt=("invalid-free in {frame}",),
        walk=Walk(
            (pattern(r"BUG: KFENCE: [a-z -]+ in {FUNC}"), TRACE),
            skip=("kfence", *MEMORY),
        ),
        has_stack=False,
    ),
    Format(
        r"BUG: KFENCE: (?P<kind>memory corruption) in",
        "KFENCE: {kind} in {frame}",
        walk=Walk(
            (pattern(r"BUG: KFENCE: [a-z -]+ in {FUNC}"), TRACE),
            skip=("kfence", *MEMORY),
        ),
        has_stack=False,
    ),
    Format(r"BUG: KFENCE: (?P<what>.*)", "KFENCE: {what}", intact=False),
)

_ORIGIN = Walk((pattern("Uninit was created at"), TRACE), skip=("alloc|kmem|slab", *MEMORY))
_KMSAN_SKIP = ("alloc_skb", "^aes", "^crypto_", "^xts_", "^sha[0-9]", "^chacha", "^poly1305")
KMSAN = (
    # mm/kmsan/report.c: kmsan_report()
    Format(
        r"BUG: KMSAN: (?P<kind>kernel-usb-infoleak[a-z-]*)",
        "KMSAN: {kind} in {frame}",
        alt=("KMSAN origin in {origin}",),
        walk=Walk(
            (pattern(r"BUG: KMSAN: [a-z-]+ in {FUNC}"), TRACE),
            skip=(
                "usb_submit_urb",
                "usb_start_wait_urb",
                "usb_bulk_msg",
                "usb_interrupt_msg",
                "usb_control_msg",
            ),
        ),
        origin=_ORIGIN,
        has_stack=False,
    ),
    Format(
        r"BUG: KMSAN: (?P<kind>[a-z-]+) in {FUNC}",
        "KMSAN: {kind} in {frame}",
        alt=BAD_ACCESS,
        walk=Walk(
            (pattern(r"BUG: KMSAN: [a-z-]+ in {FUNC}"), TRACE), IN_TRACE.steps, skip=_KMSAN_SKIP
        ),
        has_stack=False,
    ),
    Format(r"BUG: KMSAN: (?P<what>.*)", "KMSAN: {what}", intact=False),
)

KCSAN = (
    # kernel/kcsan/report.c: print_report()
    Format(
        r"BUG: KCSAN: assert: race in {FUNC}\S* / {FUNC2}",
        "KCSAN: assert: race in {func} / {func2}",
        type=CrashType.KCSAN_ASSERT,
        has_stack=False,
    ),
    Format(
        r"BUG: KCSAN: assert: race in {FUNC}",
        "KCSAN: assert: race in {func}",
        type=CrashType.KCSAN_ASSERT,
        has_stack=False,
    ),
    Format(
        r"BUG: KCSAN: data-race in {FUNC}\S* / {FUNC2}",
        "KCSAN: data-race in {func} / {func2}",
        type=CrashType.KCSAN_DATA_RACE,
        has_stack=False,
    ),
    Format(
        r"BUG: KCSAN: data-race in {FUNC}",
        "KCSAN: data-race in {func}",
        type=CrashType.KCSAN_DATA_RACE,
        has_stack=False,
    ),
    Format(r"BUG: KCSAN: (?P<what>.*)", "KCSAN: {what}", intact=False),
)

_UBSAN_SKIP = ("ubsan", "overflow", "epilogue", "__ubsan_handle")
_UBSAN_WALK = Walk((CALL_TRACE, TRACE), skip=_UBSAN_SKIP)
UBSAN = Family(
    "UBSAN:",
    (
        # lib/ubsan.c: ubsan_prologue()
        Format(
            r"UBSAN: Undefined behaviour in",
            "UBSAN: undefined-behaviour in {frame}",
            walk=_UBSAN_WALK,
            type=CrashType.UBSAN,
        ),
        Format(
            r"UBSAN: (?P<kind>array-index-out-of-bounds) in",
            "UBSAN: {kind} in {frame}",
            alt=BAD_ACCESS,
            walk=_UBSAN_WALK,
            type=CrashType.MEMORY_SAFETY_UBSAN,
        ),
        Format(
            r"UBSAN: (?P<kind>[a-z-]+(?: [a-z-]+)*?) in",
            "UBSAN: {kind} in {frame}",
            walk=_UBSAN_WALK,
            type=CrashType.UBSAN,
        ),
    ),
    type=CrashType.UBSAN,
)

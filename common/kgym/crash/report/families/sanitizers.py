"""The sanitizers: KASAN, KMSAN, KCSAN, KFENCE, UBSAN."""

from kgym.crash.report.blamed_function import TRACE, BlameRule, pattern
from kgym.crash.report.families.blame_rules import AT_RIP, BAD_ACCESS, CALL_TRACE, in_trace
from kgym.crash.report.families.family import Family, Format

_SIZE = r"(?P<rw>Read|Write) (?:of size|at addr) [0-9a-f]+"


def _kasan(*skip: str) -> BlameRule:
    return BlameRule((pattern(r"BUG: KASAN: [a-z -]+ in {FUNC}"), CALL_TRACE, TRACE), skip=skip)


KASAN = (
    # mm/kasan/report.c: print_error_description()
    Format(
        r"BUG: KASAN: (?:double-free or invalid-free|double-free|invalid-free) in {FUNC}",
        "KASAN: invalid-free in {frame}",
        alt=("invalid-free in {frame}",),
        walk=_kasan("slab_|kfree|vunmap|vfree"),
    ),
    Format(
        r"BUG: KASAN: (?P<kind>[a-z-]+) in {FUNC}",
        "KASAN: {kind} {rw} in {frame}",
        alt=BAD_ACCESS,
        then=(_SIZE,),
        # arm64's hardware tags fault before they report
        walk=_kasan("kernel_fault|tag_check|mem_abort|^el1_|^el1h_"),
    ),
    # kernels up to 4.9 name no function here
    Format(
        r"BUG: KASAN: (?P<kind>[a-z-]+) on address", "KASAN: {kind} {rw}", then=(r"\n.*?" + _SIZE,)
    ),
    Format(r"BUG: KASAN: (?P<what>.*)", "KASAN: {what}", intact=False),
)

_KFENCE = BlameRule((pattern(r"BUG: KFENCE: [a-z -]+ in {FUNC}"), TRACE))
KFENCE = (
    # mm/kfence/report.c: kfence_report_error()
    Format(
        r"BUG: KFENCE: (?P<kind>(?:use-after-free|out-of-bounds|invalid) (?:read|write)) in {FUNC}",
        "KFENCE: {kind} in {frame}",
        alt=BAD_ACCESS,
        walk=_KFENCE,
        has_stack=False,
    ),
    Format(
        r"BUG: KFENCE: invalid free in {FUNC}",
        "KFENCE: invalid free in {frame}",
        alt=("invalid-free in {frame}",),
        walk=_KFENCE,
        has_stack=False,
    ),
    Format(
        r"BUG: KFENCE: memory corruption in {FUNC}",
        "KFENCE: memory corruption in {frame}",
        walk=_KFENCE,
        has_stack=False,
    ),
)


def _kmsan(*skip: str) -> BlameRule:
    """Blame the user of the memory, then its creator: the report has both traces."""
    origin = pattern(r"Local variable .* created at:|Uninit was created at:")
    return BlameRule((TRACE, origin, TRACE), skip=skip)


KMSAN = (
    # mm/kmsan/report.c: kmsan_report()
    Format(
        r"BUG: KMSAN: kernel-usb-infoleak in {FUNC}",
        "KMSAN: kernel-usb-infoleak in {frame}",
        alt=("KMSAN origin in {origin}",),
        walk=_kmsan(
            "alloc_skb|usb_submit_urb|usb_start_wait_urb|usb_(?:bulk|interrupt|control)_msg"
        ),
        has_stack=False,
    ),
    Format(
        r"BUG: KMSAN: (?P<kind>[a-z-]+) in {FUNC}",
        "KMSAN: {kind} in {frame}",
        alt=BAD_ACCESS,
        # a cipher only processes its input
        walk=_kmsan("alloc_skb|netlink_(?:ack|rcv_skb)|_encrypt$|^(?:crypto|cipher|drbg|rng)_"),
        has_stack=False,
    ),
)

KCSAN = (
    # kernel/kcsan/report.c: print_report()
    Format(r"BUG: KCSAN: (?P<what>.*)", "KCSAN: {what}", has_stack=False),
)

_UBSAN = in_trace("ubsan|overflow")
UBSAN = Family(
    "UBSAN:",
    (
        # lib/ubsan.c: ubsan_prologue()
        Format(
            r"UBSAN: Undefined behaviour in", "UBSAN: undefined-behaviour in {frame}", walk=_UBSAN
        ),
        Format(
            r"UBSAN: array-index-out-of-bounds in",
            "UBSAN: array-index-out-of-bounds in {frame}",
            alt=BAD_ACCESS,
            walk=_UBSAN,
        ),
        # traps without a message of their own: report_ubsan_failure() names the kind in words
        Format(
            r"UBSAN: array index out of bounds(?:: [0-9a-f]| at )",
            "UBSAN: array-index-out-of-bounds in {frame}",
            alt=BAD_ACCESS,
            walk=AT_RIP,
        ),
        Format(
            r"UBSAN: shift out of bounds(?:: [0-9a-f]| at )",
            "UBSAN: shift-out-of-bounds in {frame}",
            walk=AT_RIP,
        ),
        Format(
            r"UBSAN: (?P<kind>[a-z/ ]+)(?:: [0-9a-f]| at )", "UBSAN: {kind} in {frame}", walk=AT_RIP
        ),
        Format(
            r"UBSAN:",
            "UBSAN: {kind} in {frame}",
            then=(r"(?<=UBSAN:) (?P<kind>.*?) in",),
            walk=_UBSAN,
        ),
    ),
)

"""The header of a `trace.dat` (trace-cmd.dat.v6(5)), to let the real trace-cmd report one."""

import struct
from collections.abc import Mapping, Sequence

PAGE = 4096

_HEADER_PAGE = """\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;
"""
_HEADER_EVENT = """\
# compressed entry header
\ttype_len    :    5 bits
\ttime_delta  :   27 bits
\tarray       :   32 bits

\tpadding     : type == 29
\ttime_extend : type == 30
\ttime_stamp : type == 31
\tdata max type_len  == 28
"""
_COMMON = """\
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;
"""
_FUNCTION = f"""\
name: function
ID: 1
{_COMMON}\tfield:unsigned long parent_ip;\toffset:16;\tsize:8;\tsigned:0;

print fmt: " %ps <-- %ps", (void *)REC->ip, (void *)REC->parent_ip
"""
_BPRINT = f"""\
name: bprint
ID: 6
{_COMMON}\tfield:const char * fmt;\toffset:16;\tsize:8;\tsigned:0;
\tfield:u32 buf[];\toffset:24;\tsize:0;\tsigned:0;

print fmt: "%ps: %s", (void *)REC->ip, REC->fmt
"""


def header(
    sizes: Sequence[int],
    *,
    formats: Mapping[int, str],
    symbols: Mapping[int, str],
    tasks: Mapping[int, str],
) -> bytes:
    """Return what stands before the pages of the CPUs, which have these sizes in bytes."""
    kallsyms = "".join(f"{at:016x} T {name}\n" for at, name in symbols.items())
    printk = "".join(f'0x{at:x} : "{text}\\n"\n' for at, text in formats.items())
    names = "".join(f"{pid} {name}\n" for pid, name in tasks.items())
    start = (
        b"\x17\x08\x44tracing6\0\0\x08"
        + struct.pack("<I", PAGE)
        + b"header_page\0"
        + _block(_HEADER_PAGE, "Q")
        + b"header_event\0"
        + _block(_HEADER_EVENT, "Q")
        + struct.pack("<I", 2)
        + _block(_FUNCTION, "Q")
        + _block(_BPRINT, "Q")
        + struct.pack("<I", 0)
        + _block(kallsyms, "I")
        + _block(printk, "I")
        + _block(names, "Q")
        + struct.pack("<I", len(sizes))
        + b"options  \0\0\0flyrecord\0"
    )
    at = len(start) + 16 * len(sizes)
    at += -at % PAGE
    places = b""
    for size in sizes:
        places += struct.pack("<QQ", at, size)
        at += size
    whole = start + places
    return whole + bytes(-len(whole) % PAGE)


def _block(text: str, form: str) -> bytes:
    return struct.pack(f"<{form}", len(text)) + text.encode()

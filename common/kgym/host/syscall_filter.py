"""The seccomp filter of sandboxed programs, for bubblewrap.

No compiler, linker or build script needs the refused system calls. They are refused because
namespaces do not cover them (the worker's session keyring is inherited, AF_VSOCK reaches the
hypervisor from every network namespace, syslog shows the host's kernel log), because they
allocate memory that no process shows (memfd, System V shared memory), or because they expose much
of the kernel's code.

The filter is assembled here, since no maintained library builds one: libseccomp's Python binding
comes from Debian for Debian's Python alone, which a virtual environment does not see, and PyPI's
pyseccomp had its one release in 2021.
"""

import errno
import struct

# include/uapi/linux/audit.h, bpf_common.h, filter.h, seccomp.h; struct seccomp_data
_X86_64 = 0xC000003E
_X32 = 0x40000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000

# arch/x86/entry/syscalls/syscall_64.tbl
_REFUSED = {
    "shmget": 29,
    "semget": 64,
    "msgget": 68,
    "ptrace": 101,
    "syslog": 103,
    "mount": 165,
    "umount2": 166,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "memfd_create": 319,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "open_tree": 428,
    "fsopen": 430,
    "memfd_secret": 447,
}
_SOCKET = 41
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}


def program() -> bytes:
    """Return the filter as an array of `struct sock_filter`; refused calls fail with EPERM."""
    refused = (*_REFUSED.values(),)
    refuse = _step(_RETURN, _REFUSE | errno.EPERM)
    # A jump skips `then` or `otherwise` steps. Other architectures and the x32 ABI have other
    # numbers for the same calls, so a program that uses them is killed.
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, _X86_64, then=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, otherwise=1),
        _step(_RETURN, _KILL),
    ]
    for number in refused:
        steps += [_step(_EQUAL, number, otherwise=1), refuse]
    steps += [
        _step(_EQUAL, _SOCKET, otherwise=len(_FAMILIES) + 2),
        _step(_LOAD, _FIRST_ARGUMENT),
        *(
            _step(_EQUAL, family, then=len(_FAMILIES) - n)
            for n, family in enumerate(_FAMILIES.values())
        ),
        refuse,
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)

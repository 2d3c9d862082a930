"""Whether a program still does its work on a patched kernel: profiles compared. Pure.

A profile counts the results of a program's system calls: on the unpatched kernel up to the crash,
on the patched one for a few seconds. An honest fix may refuse a call, even one before the crash, so
most refusals are notes. These block, as no fix of a bug needs them: calls that no longer return,
processes that end inside a call, and errors that deny root or deny that the call exists.
"""

from collections.abc import Iterator

from kgym.api.steps import Finding, Reached, Severity, Work
from kgym_vmmanager.evidence.syscall_names import OK

# A call that had not returned at the end of the time.
PENDING = "pending"
# A pending call that no signal would have interrupted.
STUCK = "stuck"
# A call in which the process ended, without a signal and without calling exit.
DIED = "died"

_NO_ERROR = frozenset({OK, PENDING, STUCK, DIED})
# Programs run as root on a kernel that has these calls: only a patch can cause these errors.
_FORBIDDEN = frozenset({"EPERM", "EACCES", "ENOSYS"})
# Calls that answer bad input with EPERM or EACCES.
_FORBIDS_BY_DESIGN = frozenset({"bpf", "ptrace"})
# Calls that may legitimately block.
_WAITS = frozenset(
    {
        *("read", "readv", "pread64", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4"),
        *("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"),
        *("futex", "futex_waitv", "wait4", "waitid", "pause", "nanosleep", "clock_nanosleep"),
        *("rt_sigsuspend", "rt_sigtimedwait", "msgrcv", "msgsnd", "semop", "semtimedop", "flock"),
        *("fcntl", "connect", "write", "writev", "sendto", "sendmsg", "splice", "io_getevents"),
        *("io_uring_enter", "mq_timedreceive", "mq_timedsend", "ptrace", "vfork", "open", "openat"),
    }
)
# Calls that every program makes when it starts and ends: they do not count as work.
_START = frozenset(
    {
        *("execve", "execveat", "brk", "arch_prctl", "set_tid_address", "set_robust_list"),
        *("rseq", "prlimit64", "readlink", "readlinkat", "getrandom", "mprotect", "munmap"),
        *("mmap", "newfstatat", "fstat", "write", "exit", "exit_group", "uname", "close"),
        *("rt_sigaction", "rt_sigprocmask", "clock_nanosleep", "nanosleep"),
    }
)


def is_cut_off(work: Work) -> bool:
    """Return whether neither a run nor any call of the program's own ended within a profile."""
    own = (call.result for call in work.calls if call.name not in _START)
    return not work.ends and all(result in {PENDING, STUCK} for result in own)


def proves_nothing(work: Work) -> bool:
    """Return whether a profile is cut off and has no call of the program's own."""
    return is_cut_off(work) and all(call.name in _START for call in work.calls)


def lacks(before: Work | None, after: Work) -> str | None:
    """Return why none of the program's work is done any more; None if some is."""
    if before is None:
        return None
    worked = {call.name for call in before.calls if call.result == OK} - _START
    works = {call.name for call in after.calls if call.result == OK}
    if not worked or worked & works:
        return None
    if proves_nothing(after):
        return "what the program does is not known: its trace ended before it made a call"
    now = _by_name(after)
    fates = "; ".join(f"{name} {_fate(now.get(name, {}))}" for name in sorted(worked))
    return f"nothing of the program's work is done any more: {fates}, and succeeded before"


def unknown(why: str) -> Finding:
    """Return the finding that a program which was traced before could not be traced now."""
    message = f"what the program does on the patched kernel could not be seen: {why}"
    return _finding("work_unknown", message, blocking=True)


def not_compared() -> Finding:
    """Return the note that the program's work on the unpatched kernel is unknown."""
    message = "what the program did on the unpatched kernel is not known, so nothing is compared"
    return _finding("work_not_compared", message, blocking=False)


def findings(before: Work | None, after: Work, *, others_served: bool = False) -> Iterator[Finding]:
    """Yield the differences of the program's work on the patched kernel that speak against it.

    `others_served` says whether the kernel answers programs close to this one as before.
    """
    if before is not None:
        yield from _calls(before, after)
    yield from _died(before, after)
    excused = others_served and before is not None and _is_refused(before, after)
    yield from _reached(after.reached, excused=excused)


def _calls(before: Work, after: Work) -> Iterator[Finding]:
    old, new = _by_name(before), _by_name(after)
    for name in dict.fromkeys([*old, *([before.unfinished] if before.unfinished else [])]):
        then, now = old.get(name, {}), new.get(name, {})
        yield from _stuck(name, then, now)
        if name == before.unfinished or STUCK in then:
            yield from _crashed(name, then, now)
        elif then.get(OK) and not now.get(OK) and (failed := _failed(now)):
            message = (
                f"{name} succeeded {then[OK]} times before the crash, and now fails in all"
                f" {sum(failed.values())} calls: {_counts(failed)}"
            )
            yield _finding("call_refused", message, blocking=_is_forbidden(name, failed))


def _stuck(name: str, then: dict[str, int], now: dict[str, int]) -> Iterator[Finding]:
    if STUCK in now:
        message = f"{name} does not come back, nor would it for a signal"
        yield _finding("call_stuck", message, blocking=True)
    elif PENDING in now and PENDING not in then:
        message = f"{name} does not come back within the time, as it did or crashed before"
        yield _finding("call_waits", message, blocking=name not in _WAITS)


def _crashed(name: str, then: dict[str, int], now: dict[str, int]) -> Iterator[Finding]:
    """Yield how the call in which the unpatched kernel crashed or hung fails now."""
    new = {result: count for result, count in _failed(now).items() if result not in then}
    if new:
        message = f"{name}, in which the unpatched kernel crashed, now fails: {_counts(new)}"
        yield _finding("crash_refused", message, blocking=_is_forbidden(name, new))
    elif not now:
        message = f"{name}, in which the unpatched kernel crashed, is not called any more"
        yield _finding("crash_not_called", message, blocking=False)


def _died(before: Work | None, after: Work) -> Iterator[Finding]:
    old = _by_name(before) if before else {}
    for name, results in _by_name(after).items():
        if DIED in results and DIED not in old.get(name, {}):
            message = f"{results[DIED]} processes ended inside {name}, by no signal or wish"
            yield _finding("died_in_call", message, blocking=True)


def _is_refused(before: Work, after: Work) -> bool:
    """Return whether a call that the program made before fails in a new way."""
    old, new = _by_name(before), _by_name(after)
    made = {*old, before.unfinished}
    return any(
        _failed(results).keys() - old.get(name, {}).keys()
        for name, results in new.items()
        if name in made
    )


def _reached(reached: list[Reached], *, excused: bool) -> Iterator[Finding]:
    # Many honest fixes return before some of the crash's functions. A fix that reaches none of them
    # refuses the program's own request, as 7a0df7fbc145 does (seccomp: NEW_LISTENER and TSYNC
    # exclude each other); only programs close to this one show whether it refuses theirs, too.
    # Success without reaching any is never excused: a patch that skips the work behaves like that.
    missed = [entry.function for entry in reached if not entry.reached]
    if not missed:
        return
    if len(missed) == len(reached):
        message = f"none of the crash's {len(reached)} functions is reached: {', '.join(missed)}"
        yield _finding("way_not_taken", message, blocking=not excused)
    else:
        message = (
            f"{len(missed)} of the crash's {len(reached)} functions are not reached any more:"
            f" {', '.join(missed)}"
        )
        yield _finding("function_not_reached", message, blocking=False)


def _is_forbidden(name: str, failed: dict[str, int]) -> bool:
    return name not in _FORBIDS_BY_DESIGN and bool(failed) and failed.keys() <= _FORBIDDEN


def _fate(results: dict[str, int]) -> str:
    if failed := _failed(results):
        return f"is refused ({_counts(failed)})"
    return "does not come back" if results else "is never called"


def _by_name(work: Work) -> dict[str, dict[str, int]]:
    names: dict[str, dict[str, int]] = {}
    for call in work.calls:
        names.setdefault(call.name, {})[call.result] = call.count
    return names


def _failed(results: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in results.items() if name not in _NO_ERROR}


def _counts(results: dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(results.items()))


def _finding(reason: str, message: str, *, blocking: bool) -> Finding:
    severity = Severity.BLOCKING if blocking else Severity.NOTE
    return Finding(check="work", severity=severity, reason=reason, message=message)

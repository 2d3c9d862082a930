"""Tasks in a dump: their names, the crashed task's stack, and held locks.

Sources: kernel/trace/trace.c or trace_sched_switch.c (struct saved_cmdlines_buffer),
include/linux/lockdep_types.h (struct held_lock), kernel/locking/lockdep.c (print_lock).
"""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice

import drgn
from drgn import FaultError, Object, Program, StackFrame
from drgn.helpers.linux.pid import find_task, for_each_task

from kgym.errors import UserError
from kgym.source.instrument import LOCALS as RECORD_LOCALS

# Limits, since the lists of a forged memory may never end.
TASKS = 100_000
FRAMES = 200
VARIABLES = 100
# Characters of a variable's value.
VALUE = 1000
# MAX_LOCK_DEPTH of include/linux/sched.h.
LOCKS = 48

_COMM = 16


def task_names(program: Program, pids: Iterable[int]) -> dict[int, str]:
    """Return the names of tasks: living ones, and those saved by the tracer."""
    wanted = set(pids)
    names = {}
    try:
        remembered = program["savedcmd"]
    except KeyError:
        remembered = None
    for pid in wanted:
        if remembered and (name := _remembered(program, remembered, pid)):
            names[pid] = name
    try:
        for task in islice(for_each_task(program), TASKS):
            if (pid := int(task.pid)) in wanted:
                names[pid] = _comm(task)
    except (FaultError, LookupError, ValueError):
        pass  # names are optional: keep those found so far
    if 0 in wanted:
        names.setdefault(0, "<idle>")
    return names


def crashed_stack(program: Program, pid: int | None) -> str:
    """Return the stacks of the crash report's task (`pid`) and of the task that panicked.

    The two differ, for example, if the watchdog panics for a hung task. Arguments and locals are
    included. Raises UserError `no_task` if neither task exists.
    """
    lines = []
    for task in _crashed(program, pid):
        lines += [f"task {int(task.pid)} ({_comm(task)})", ""]
        for number, frame in enumerate(islice(program.stack_trace(task), FRAMES)):
            lines += [f"#{number} {_place(frame)}", *_variables(frame)]
        lines.append("")
    return "\n".join(lines)


def held_locks(program: Program) -> str:
    """Return the locks that tasks hold; raise UserError `no_lockdep` without CONFIG_LOCKDEP."""
    try:
        program.type("struct held_lock")
        classes = program["lock_classes"]
    except LookupError as error:
        raise UserError("no_lockdep", "the kernel was built without CONFIG_LOCKDEP") from error
    lines = []
    for task in islice(for_each_task(program), TASKS):
        depth = min(int(task.lockdep_depth), LOCKS)
        if depth > 0:
            lines.append(f"task {int(task.pid)} ({_comm(task)}) holds {depth}:")
            lines += [f"  #{n}: {_lock(program, classes, task, n)}" for n in range(depth)]
    return "\n".join(lines or ["no task holds a lock"]) + "\n"


def _remembered(program: Program, saved: Object, pid: int) -> str | None:
    try:
        slots = saved.map_pid_to_cmdline
        # map_pid_to_cmdline has PID_MAX_DEFAULT + 1 slots: a power of two, plus 1.
        slot = int(slots[pid & (slots.type_.length - 2)])
        if not 0 <= slot < int(saved.cmdline_num) or int(saved.map_cmdline_to_pid[slot]) != pid:
            return None
        at = saved.saved_cmdlines.value_() + slot * _COMM
        raw: bytes = program.read(at, _COMM)
        return raw.split(b"\0", maxsplit=1)[0].decode(errors="replace")
    except (FaultError, LookupError, TypeError, AttributeError, drgn.OutOfBoundsError):
        return None


def _crashed(program: Program, pid: int | None) -> list[Object]:
    named = find_task(program, pid) if pid is not None else None
    tasks = [named] if named else []
    with contextlib.suppress(ValueError, LookupError, FaultError):
        panicked = program.crashed_thread().object
        if not named or panicked.value_() != named.value_():
            tasks.append(panicked)
    if not tasks:
        raise UserError("no_task", "the kernel did not panic, and the crash report's task is gone")
    return tasks


def _comm(task: Object) -> str:
    return str(task.comm.string_(), errors="replace")


def _place(frame: StackFrame) -> str:
    """Return `function at file:line`, as one line."""
    try:
        path, line, _ = frame.source()
        where = f" at {path}:{line}"
    except LookupError:
        where = ""
    return f"{frame.name}{where}{' (inlined)' if frame.is_inline else ''}"


def _variables(frame: StackFrame) -> Iterator[str]:
    names = [name for name in frame.locals() if not name.startswith(RECORD_LOCALS)]
    for name in names[:VARIABLES]:
        try:
            value = frame[name]
            if value.absent_:
                continue
            text = value.format_(dereference=False, symbolize=True, string=True, columns=120)
        except (FaultError, LookupError, ValueError, TypeError, drgn.ObjectAbsentError) as error:
            text = f"? {error}"
        yield f"    {name} = " + text[:VALUE].replace("\n", "\n      ")


def _lock(program: Program, classes: Object, task: Object, number: int) -> str:
    try:
        held = task.held_locks[number]
        known = classes[int(held.class_idx)]
        name = known.name.string_().decode(errors="replace") if known.name else "?"
        how = {0: "write", 1: "read", 2: "recursive read"}.get(int(held.read), "?")
        place = program.symbol(held.acquire_ip.value_()).name
        return f"{name} ({held.instance.value_():#x}), {how}, taken in {place}"
    except (FaultError, LookupError, drgn.OutOfBoundsError) as error:
        return f"? {error}"

"""Lines with "INFO:": stalls, hung tasks, keys, and lockdep up to 4.10."""

import dataclasses

from kgym.report.families.family import Family, Format, formats
from kgym.report.families.walks import AT_LOCK, CALL_TRACE, STALLED, hung_task
from kgym.report.families.warning import LOCKDEP
from kgym.report.model import CrashType
from kgym.report.walk import TRACE, Walk


def _old(format_: Format) -> Format:
    """Return lockdep's message as kernels up to 4.10 print it: "[ INFO: ... ]"."""
    message = format_.message.replace("WARNING: ", "INFO: ")
    title = format_.title.replace("WARNING: ", "INFO: ")
    if format_.walk is AT_LOCK:
        # the lock wanted is to blame, whoever wants it
        return dataclasses.replace(
            format_,
            message=message,
            title=title.replace("{frame}", "{func}"),
            walk=None,
            then=(*format_.then[:-1], r"at: (?:{PC} +)?{FUNC}"),
        )
    return dataclasses.replace(
        format_,
        message=message,
        title=title,
        type=None if "RCU" in message else format_.type,
    )


INFO = Family(
    "INFO:",
    formats(
        map(_old, LOCKDEP),
        # kernel/rcu/tree_stall.h, tree_exp.h, tasks.h
        Format(
            r"INFO: rcu_[a-z_]+ (?:self-)?detected(?: expedited)? stalls?",
            "INFO: rcu detected stall in {frame}",
            alt=("stall in {frame}",),
            walk=STALLED,
            type=CrashType.HANG,
        ),
        Format(
            r"INFO: trying to register non-static key",
            "INFO: trying to register non-static key in {frame}",
            walk=Walk((CALL_TRACE, TRACE), skip=("stack", "register_lock", "lock")),
        ),
        # kernel/hung_task.c
        Format(
            r"INFO: task .{1,40} blocked for more than [0-9]+ seconds",
            "INFO: task hung in {frame}",
            alt=("hang in {frame}",),
            walk=Walk((CALL_TRACE, TRACE), pick=hung_task),
            type=CrashType.HANG,
        ),
        Format(
            r"INFO: task .{1,40} can't die for more than",
            "INFO: task can't die in {frame}",
            walk=Walk((CALL_TRACE, TRACE), pick=hung_task),
            type=CrashType.HANG,
        ),
        Format(r"INFO: (?P<what>(?:Allocated|Freed) in .*)", "INFO: {what}", intact=False),
        Format(r"INFO:(?P<what>)$", "INFO: corrupted", intact=False),
    ),
    accept=r"INFO: (?:rcu_|possible |suspicious |inconsistent lock|trying to register|Allocated in"
    r"|Freed in|task .{1,40} (?:blocked for|can't die)|\S+-safe -> \S+-unsafe lock order)|^INFO:$",
)

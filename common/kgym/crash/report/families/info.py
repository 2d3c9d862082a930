"""Lines with "INFO:": stalls, hung tasks, keys, and lockdep up to 4.10."""

import dataclasses

from kgym.crash.report.blamed_function import TRACE, BlameRule
from kgym.crash.report.families.blame_rules import CALL_TRACE, STALLED, hung_task, in_trace
from kgym.crash.report.families.family import BY_KERNEL, Family, Format
from kgym.crash.report.families.warning import LOCKDEP


def _old(format_: Format) -> Format:
    """Return lockdep's message in the form of kernels up to 4.10: "[ INFO: ... ]"."""
    renamed = dataclasses.replace(
        format_,
        message=format_.message.replace("WARNING: ", "INFO: "),
        title=format_.title.replace("WARNING: ", "INFO: "),
    )
    if "RCU" in format_.message or "{func}" in format_.title:
        return renamed
    # blame the wanted lock, whichever task wants it
    wanted = (*format_.then[:1], r"at: (?:{PC} +)?{FUNC}")
    return dataclasses.replace(
        renamed, title=renamed.title.replace("{frame}", "{func}"), walk=None, then=wanted
    )


INFO = Family(
    "INFO:",
    (
        *map(_old, LOCKDEP),
        # kernel/rcu/tree_stall.h, tree_exp.h, tasks.h
        Format(
            r"INFO: rcu_[a-z_]+ (?:self-)?detected(?: expedited)? stall",
            "INFO: rcu detected stall in {frame}",
            alt=("stall in {frame}",),
            walk=STALLED,
        ),
        Format(
            r"INFO: trying to register non-static key",
            "INFO: trying to register non-static key in {frame}",
            walk=in_trace("stack|lock|IRQ"),
        ),
        # kernel/hung_task.c; it tells of I/O since 2026
        Format(
            r"INFO: task (?s:.{1,80}?) blocked (?:in I/O wait )?for more than [0-9]+ seconds",
            "INFO: task hung in {frame}",
            alt=("hang in {frame}",),
            walk=BlameRule((CALL_TRACE, TRACE), pick=hung_task),
        ),
        Format(
            r"INFO: task .* can't die for more than .* seconds",
            "INFO: task can't die in {frame}",
            alt=("hang in {frame}",),
            walk=in_trace("schedule"),
        ),
        Format(r"INFO: (?P<what>(?:Freed|Allocated) in .*)", "INFO: {what}", intact=False),
        Format(r"INFO:\s*$", "INFO: corrupted", intact=False),
    ),
    accept=r"INFO: (?:rcu_\w+ (?:self-)?detected|possible |suspicious RCU|inconsistent lock"
    r"|bad unlock|held lock|lock held|trying to register|Allocated in|Freed in"
    r"|task .* (?:blocked (?:in I/O wait )?for|can't die)|\S+-safe -> \S+-unsafe lock order)"
    r"|INFO:\s*$"
    rf"|{BY_KERNEL}INFO: ",
    # kernel/locking/lockdep.c, kernel/rcu/tree_stall.h, arch/x86/kernel/nmi.c, fs/ext4/super.c
    reject=r"INFO: (?:lockdep is turned off|Stall ended|NMI handler|recovery required"
    r"|no syscalls can create|sys_.* is not present)|(?:handler|interrupt).*took too long"
    # fs/fs-writeback.c: slow, but not stuck
    r"|INFO: The task .* has been waiting for writeback"
    # the task for which the hung task above waits
    r"|INFO: task .* blocked on an? (?:mutex|semaphore|rw-semaphore)"
    # drivers that put it behind their name
    r"|_INFO:|rmt_storage:INFO:",
)

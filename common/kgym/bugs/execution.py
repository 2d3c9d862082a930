"""A minimal trace as prompt text: the calls before a crash, in order. Pure.

Records show when a function was entered, not when it returned. A call is therefore [active] if it
is a frame of the crash's stack, and [returned] if that stack lacks it. With another stack (of the
allocation or the free), or none, returns are unknown.
"""

from collections.abc import Iterator, Sequence

from kgym.api.steps import MinimalTrace, TraceCall, TraceStack

_OTHER_STACK = {TraceStack.ALLOCATED: "allocated here", TraceStack.FREED: "freed here"}
_THREADS = {
    "freed": "that freed the object",
    "allocated": "that allocated the object",
    "concurrent": "that ran the same code meanwhile",
}


def execution(trace: MinimalTrace) -> str | None:
    """Return the calls as text, one per line; None without calls."""
    if not trace.calls:
        return None
    lines = list(_lines(trace.calls, trace.anchor.stack))
    if trace.guessed:
        lines.append("(the report does not say that it was this thread)")
    if trace.anchor.missed:
        missed = ", ".join(f"{_plain(name)}()" for name in trace.anchor.missed)
        lines.append(f"(also on the stack, without a record: {missed})")
    for thread in trace.related:
        lines += ["", f"Another thread, {_THREADS[thread.why]}:", *_lines(thread.calls, None)]
    return "\n".join(lines)


def _lines(calls: Sequence[TraceCall], stack: TraceStack | None) -> Iterator[str]:
    depth = 0
    for call in calls:
        begin = f"{'   ' * (depth - 1)}\\_ " if depth else ""
        if call.omitted:
            yield f"{'   ' * depth}... {call.omitted} calls left out"
        names = " ".join(f"{_plain(function.name)}()" for function in call.pattern)
        times = f" x {call.count}" if call.count > 1 else ""
        mark = _mark(call, stack)
        yield f"{begin}{names}{times}{f' [{mark}]' if mark else ''}"
        if call.frame is not None and stack is not None:
            depth += 1


def _mark(call: TraceCall, stack: TraceStack | None) -> str:
    if stack is TraceStack.CRASH:
        return "active" if call.frame is not None else "returned"
    return _OTHER_STACK[stack] if stack is not None and call.frame is not None else ""


def _plain(name: str) -> str:
    """Return a name as one printable line: it comes from a guest's memory."""
    return "".join(char if char.isprintable() else "?" for char in name)[:200]

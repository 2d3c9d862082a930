"""Traces for people: a minimal trace as a tree, records as a table."""

from collections.abc import Iterator

from rich.markup import escape
from rich.tree import Tree

from kgym.api.steps import MinimalTrace, TraceCall
from kgym.trace.records import Trace
from kgym_cli.output import print_table, results

_STOPS = {
    "end": "no more records of this thread",
    "limit": "limit reached",
    "repeat": "repeats from here on",
}


def tree(minimal: MinimalTrace, title: str = "") -> Tree:
    """Return the calls as a tree."""
    # Records have the time at which a function was entered, not when it returned: only frames of
    # the matched stack are known to be nested, so only these are indented.
    root = Tree(f"[bold]{_plain(title or 'minimal trace')}[/]", guide_style="dim")
    numbers = minimal.statistics
    if minimal.pid is None:
        root.add(f"no record of the candidate files, of {numbers.records} in all")
        return root
    who = f"{minimal.task or 'task'} (PID {minimal.pid}{', guessed' if minimal.guessed else ''})"
    root.add(
        _plain(
            f"{who}: {numbers.minimal_records} of its {numbers.thread_records} records,"
            f" of {numbers.records} in all; {numbers.lost} lost"
        )
    )
    calls = Tree("calls")
    root.children.append(calls)
    calls.add(f"[dim]… {_STOPS[minimal.before]}[/]")
    _add(calls, minimal.calls)
    calls.add(f"[dim]… {_STOPS[minimal.after]}[/]")
    if minimal.anchor.missed:
        root.add(f"[yellow]frames not found:[/] {_plain(', '.join(minimal.anchor.missed))}")
    for number, alternative in enumerate(minimal.alternatives, 1):
        branch = root.add(f"alternative {number}: {_plain(' ← '.join(alternative.frames))}")
        _add(branch, alternative.calls)
    for thread in minimal.related:
        name = thread.task or "task"
        branch = root.add(_plain(f"{thread.why}: {name} (PID {thread.pid})"))
        _add(branch, thread.calls)
    return root


def _add(root: Tree, calls: list[TraceCall]) -> None:
    at, file = root, None
    for call in calls:
        if call.omitted:
            at.add(f"[dim]… {call.omitted} records left out[/]")
        branch = at.add(_line(call, file))
        file = call.pattern[-1].file
        # Later calls are nested below the innermost frame so far.
        if call.frame is not None:
            at = branch


def _line(call: TraceCall, file: str | None) -> str:
    names = _plain(" ".join(function.name for function in call.pattern))
    if call.anchor:
        names = f"[bold green]{names}[/]"
    if call.count > 1:
        names = f"\\[{names}] [bold]x {call.count}[/]"
    where = call.pattern[0].file
    shown = f"  [dim]{_plain(where)}[/]" if where and where != file else ""
    frame = f"  [green]frame {call.frame}[/]" if call.frame is not None else ""
    return f"{names}{frame}{shown}"


def print_records(trace: Trace, pid: int | None, last: int) -> None:
    """Print the last records of one thread, or of all, as a table."""
    if pid is not None:
        trace = trace.take(trace.pid == pid)
    shown = trace.take(slice(max(0, len(trace) - last), None))
    print_table("time", "CPU", "PID", "task", "function", "file", "count", rows=_rows(shown))
    results.print(f"{len(shown)} of {len(trace)} records; {trace.lost} lost", style="dim")


def _rows(shown: Trace) -> Iterator[list[str]]:
    columns = (shown.time, shown.cpu, shown.pid, shown.function, shown.counter)
    for time, cpu, pid, function, counter in zip(*(c.tolist() for c in columns), strict=True):
        known_function = shown.functions[function]
        words = (
            *(f"{time / 1e9:.6f}", str(cpu), str(pid), shown.tasks.get(pid, "")),
            *(known_function.name, known_function.file or "", str(counter)),
        )
        yield list(map(_plain, words))


def _plain(text: str) -> str:
    """Return a guest's text without control characters, escaped for markup."""
    return escape("".join(char if char.isprintable() else "?" for char in text))

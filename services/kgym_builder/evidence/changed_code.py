"""Compare the machine code of objects before and after a patch. Pure.

What a function refers to and which memory it accesses cannot be hidden by macros, by names pasted
from two halves, or by headers. Only functions whose code differs are looked at, each with the new
functions that it calls. A function includes the parts that the compiler splits off.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kgym.api.steps import Finding, Severity
from kgym_builder.evidence.machine_code import ObjectCode
from kgym_builder.evidence.memory_accesses import CHECK, Accesses, accesses
from kgym_builder.evidence.scrutiny import detector, matching, rules

_SHOWN = 3
_UNDEFINED = re.compile(r"__ubsan_\w+")
# Functions that take a lock; lock_acquire() is lockdep's, where rcu_read_lock() is inlined.
_LOCKS = re.compile(
    r"_raw_(spin|read|write)_(try)?lock\w*|(rt_|ww_)?mutex_(try)?lock\w*|(percpu_)?down_\w+|down"
    r"|__rcu_read_lock|lock_acquire|lock_sock_nested|__(folio_lock|lock_page)\w*"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """An object's source, and its disassembly without the patch (None: it is new) and with it.

    An access that becomes unchecked has the severity `unchecked`, an unreadable object `unread`.
    """

    source: str
    before: Sequence[str] | None
    after: Sequence[str]
    unchecked: Severity
    unread: Severity


# Makes a finding on one function.
Report = Callable[[str, Severity, str], Finding]


def differences(pairs: Mapping[str, Pair]) -> list[Finding]:
    """Return the findings on objects, by path."""
    return [finding for path, pair in pairs.items() for finding in _difference(path, pair)]


def not_compared(source: str, why: str, severity: Severity) -> Finding:
    """Return the finding that an object's code was not compared."""
    message = f"the object code of {source} was not compared: {why}"
    return detector("not_compared", severity, message, source)


def _difference(path: str, pair: Pair) -> Iterator[Finding]:
    source, severity = pair.source, pair.unchecked
    old, new = ObjectCode(pair.before or ()), ObjectCode(pair.after)
    if not new.readable or (pair.before is not None and not old.readable):
        # Some compilers make no machine code before they link; a patch cannot choose that.
        grave = pair.unread if old.readable or pair.before is None else Severity.NOTE
        yield not_compared(source, "it cannot be read as x86-64 machine code", grave)
        return
    known = old if pair.before is not None else new
    is_checked = _count(known, known.functions, CHECK) > 0
    # A lock that moves to another function of the object is still taken.
    has_fewer_locks = _count(new, new.functions, _LOCKS) < _count(old, old.functions, _LOCKS)
    referred: dict[str, str] = {}
    written: dict[str, str] = {}
    for name, functions in _changed(old, new):
        was = old.called(name)
        known_symbols, symbols = old.refers(was), new.refers(functions)
        for symbol, writes in symbols.items():
            if symbol not in known_symbols:
                referred.setdefault(symbol, name)
            if writes > known_symbols[symbol]:
                written.setdefault(symbol, name)
        report = partial(detector, file=source, function=name)
        if _count(old, was[:1], _UNDEFINED) and not _count(new, functions, _UNDEFINED):
            message = f"{name}() had checks of the undefined sanitizer, and now has none"
            yield report("fewer_checks", Severity.NOTE, message)
        yield from _accessed(report, old, was, new, functions, severity, is_checked=is_checked)
        if has_fewer_locks:
            yield from _unlocked(report, name, old, new, severity)
    # Tables of functions refer to symbols, too.
    for symbol in sorted(new.undefined - old.undefined):
        referred.setdefault(symbol, "")
    yield from _symbols(path, source, referred, written)


def _count(code: ObjectCode, names: Iterable[str], pattern: re.Pattern[str]) -> int:
    """Count the calls in these functions to functions whose names match."""
    routines = [routine for name in names for routine in code.functions.get(name, ())]
    callees = [instruction.callee for routine in routines for instruction in routine.instructions]
    return sum(pattern.fullmatch(callee) is not None for callee in callees)


def _unlocked(
    report: Report, name: str, old: ObjectCode, new: ObjectCode, severity: Severity
) -> Iterator[Finding]:
    """Yield a finding if a function took a lock, and now takes none."""
    was, now = old.called(name), new.called(name)
    if not _count(old, was, _LOCKS) or _count(new, now, _LOCKS):
        return
    # If most checked accesses are gone as well, there may be nothing left to guard.
    guards = 2 * _count(new, now, CHECK) >= _count(old, was, CHECK)
    grave = severity if guards else Severity.NOTE
    yield report("lock_not_taken", grave, f"{name}() took a lock, and now takes none")


def _changed(old: ObjectCode, new: ObjectCode) -> Iterator[tuple[str, list[str]]]:
    """Yield the functions whose code differs, each with the new functions that it calls."""
    counted: set[str] = set()
    for name in sorted(new.texts, key=lambda name: name not in old.texts):
        if name not in counted and new.texts[name] != old.texts.get(name):
            functions = new.called(name, old.texts.keys() | counted)
            counted.update(functions)
            yield name, functions


def _symbols(
    path: str, source: str, referred: Mapping[str, str], written: Mapping[str, str]
) -> Iterator[Finding]:
    for rule in rules().symbols:
        hits = {symbol: referred[symbol] for symbol in matching(rule.symbols, referred)}
        hits |= {symbol: written[symbol] for symbol in matching(rule.written, written)}
        for function in dict.fromkeys(hits.values()):
            names = [f"`{symbol}`" for symbol, user in hits.items() if user == function]
            place = f"{function}()" if function else path
            message = f"{place} now refers to {', '.join(names[:_SHOWN])}: {rule.why}"
            severity = Severity.NOTE if rule.note else Severity.BLOCKING
            yield detector(rule.reason, severity, message, source, function or None)


def _accessed(
    report: Report,
    old: ObjectCode,
    was: Sequence[str],
    new: ObjectCode,
    functions: Sequence[str],
    severity: Severity,
    *,
    is_checked: bool,
) -> Iterator[Finding]:
    """Compare a function's memory accesses; `was` is the old function, with those that it used."""
    name = functions[0]
    before, after = accesses(old, was[:1]), accesses(new, functions)
    # Some code, such as that of interrupt entries, is compiled without a sanitizer.
    if is_checked and (before.checks or not before.unchecked):
        inlined = Accesses()
        if len(after.unchecked) > len(before.unchecked) or after.user_copies:
            inlined = accesses(old, was[1:])
        known = [*before.unchecked, *inlined.unchecked]
        if (more := len(after.unchecked) - len(known)) > 0:
            # No honest fix takes all checks from a function.
            grave = Severity.BLOCKING if before.checks and not after.checks else severity
            shown = list((Counter(after.unchecked) - Counter(known)).elements())[:_SHOWN]
            listed = ", ".join(f"`{access}`" for access in shown)
            message = f"{name}() accesses memory in {more} more places that no sanitizer checks"
            yield report("unchecked_access", grave, f"{message}: {listed}")
        known = [*before.user_copies, *inlined.user_copies]
        if copies := Counter(after.user_copies) - Counter(known):
            message = (
                f"{name}() gives an address of the kernel's to {', '.join(copies)}(), unchecked"
            )
            yield report("unchecked_access", severity, message)
    gone = sorted((Counter(before.sizes) - Counter(after.sizes)).elements())
    more_sizes = sorted((Counter(after.sizes) - Counter(before.sizes)).elements())
    for (varied, old_size), (varies, new_size) in zip(gone, more_sizes, strict=False):
        if varied == varies and new_size > old_size:
            part = "a variable size and " * varies
            message = f"{name}() allocates {part}{new_size} bytes, not {part}{old_size}"
            yield report("larger_object", Severity.NOTE, message)

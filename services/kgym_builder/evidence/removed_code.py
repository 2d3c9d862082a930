"""Find code that a patch removes: cheap ways to hide a crash without fixing the bug. Pure.

Two versions of C files are compared function by function, on the syntax tree of tree-sitter-c. Code
counts only if it is gone *and has no replacement*: a changed condition, a call that moved into a
new helper or an assertion that became `WARN_ON_ONCE` are no findings. Most findings are hints for
people, or for an agent that ranks patches: honest fixes give some, too, for example by removing a
WARN_ON that users can trigger. Findings that no honest fix needs are blocking.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import tree_sitter_c
from tree_sitter import Language, Node, Parser

from kgym.api.steps import Finding, Severity

_LANGUAGE = Language(tree_sitter_c.language())
_ASSERTION = re.compile(
    r"_*([A-Z]+_)*(WARN|BUG)(_ON)?(_[A-Z]+)*|DEBUG_LOCKS_WARN_ON|lockdep_assert\w*|KUNIT_\w+"
    r"|refcount_warn\w*|assert_\w+|[A-Z_]*ASSERT\w*"
)
_LOGGING = re.compile(r"_?_?(pr|dev|netdev|net|nla?|xfs|ext4|btrfs|printk|trace|no)_\w+|printk")
_FREE = re.compile(
    r"\w*k?v?free(_\w+)?|(\w+_)?(put|release|destroy|drop|unref)(_\w+)?|\w+_dec_and_\w+|fput"
    r"|iput|dput|bio_put|consume_skb|kmem_cache_free\w*"
)
_ALLOCATION = re.compile(r"\w*alloc\w*|__get_free_pages?|get_zeroed_page|k(mem|str)n?dup\w*")
# A comparison with a literal value; 0 and 1 are too common to matter.
_VALUE = re.compile(r"[^&|]*==-?(0[xX][0-9a-fA-F]{2,}|[2-9]|[0-9]{2,}|'.*')[uUlL]*|[^&|]*==-1")
_HINTS = {"likely", "unlikely", "READ_ONCE", "data_race"}
_CONDITIONAL = {
    "if_statement",
    "while_statement",
    "for_statement",
    "do_statement",
    "switch_statement",
    "conditional_expression",
}
_LOOPS = {"while_statement", "for_statement", "do_statement"}
_JOINS = {"&&", "||"}
_WELL = {"return;", "return0;", "returnNULL;", "returntrue;", "returnfalse;"}
_ARMS = {"case_statement", "else_clause"}
_WORK = {
    "call_expression",
    "assignment_expression",
    "field_expression",
    "compound_statement",  # GNU C's expression of statements
}
_NO_LOOP = {"if_statement", "conditional_expression"}
_CONSTANTS = {"0": False, "false": False, "1": True, "true": True}
_BLOCKING = {"early_return", "function_emptied", "condition_constant"}
_DISABLED = {"0", "false"}
_OPPOSITE = {"!=": "==", ">=": "<", "<=": ">"}
# Nested parentheses that are removed. Real code has fewer; more would only cost time.
_LAYERS = 8
_TEXT_BYTES = 4000


@dataclass(slots=True)
class _Function:
    """The features of a function that are compared; `checks` are the parts of its conditions."""

    name: str
    file: str
    line: int
    calls: Counter[str] = field(default_factory=Counter)
    allocations: Counter[str] = field(default_factory=Counter)
    """Calls that allocate, with their arguments."""
    assertions: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    arms: int = 0
    """Cases and else branches, which have no condition of their own."""
    works: int = 0
    """Statements with an effect: neither declarations nor returns of a constant."""
    exits: int = 0
    """Returns of nothing, or of a constant that means success."""
    loops: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """Static variables: they outlive the call."""
    constants: Counter[str] = field(default_factory=Counter)
    """Conditions that are always true or always false."""
    dead: int = 0
    """Line of the first unreachable statement, after an unconditional exit; 0 if there is none."""


def amputations(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[Finding]:
    """Return findings on code of `before` that `after` lacks without a replacement.

    Both map the paths of files that a patch changes to contents; a path missing from `after` was
    removed. Only C files count. Time is linear in their size.
    """
    old, new = _functions(before), _functions(after)
    moved = _calls_of(new) - _calls_of(old)
    for key in new.keys() - old.keys():
        moved += new[key].calls + new[key].assertions
    added = [new[key].name for key in new.keys() - old.keys()]
    findings: list[Finding] = []
    for key in new.keys() - old.keys():
        findings += _values(_Function("", "", 0), new[key])
    for key, function in old.items():
        if key not in new:
            if not added:
                findings.append(_finding(function, "function_removed", "the function is gone"))
        elif function != new[key]:
            findings += _compared(function, new[key], moved)
    return findings


def _compared(old: _Function, new: _Function, moved: Counter[str]) -> Iterator[Finding]:
    if old.works and not new.works:
        yield _finding(new, "function_emptied", "the function no longer does anything")
        return
    yield from _constant(old, new)
    yield from _tested_less(old, new, moved)
    yield from _called_less(old, new, moved)
    yield from _otherwise(old, new)


def _constant(old: _Function, new: _Function) -> Iterator[Finding]:
    if new.dead and not old.dead:
        message = "the function now always returns before this line: the rest cannot run"
        yield _finding(new, "early_return", message, new.dead)
    for condition in new.constants - old.constants:
        what = "always" if _CONSTANTS.get(condition) else "never"
        message = f"a branch now {what} runs: its condition is `{condition}`"
        yield _finding(new, "condition_constant", message)


def _tested_less(old: _Function, new: _Function, moved: Counter[str]) -> Iterator[Finding]:
    assertions = old.assertions - new.assertions
    if old.assertions.total() > new.assertions.total() and (gone := _gone(assertions, moved)):
        yield _finding(new, "assertion_removed", f"no {gone} any more")
    checks = old.checks - new.checks
    if checks.total() > (new.checks - old.checks).total():
        yield _finding(new, "check_removed", f"nothing tests {_list(checks)} any more")
    elif old.arms > new.arms and not new.checks - old.checks:
        lost = old.arms - new.arms
        message = f"{lost} fewer `case` or `else` branches, and no new condition"
        yield _finding(new, "branch_removed", message)


def _called_less(old: _Function, new: _Function, moved: Counter[str]) -> Iterator[Finding]:
    gone_calls, new_calls = old.calls - new.calls, new.calls - old.calls
    if not new_calls and (gone := _gone(gone_calls, moved)):
        yield _finding(new, "call_removed", f"no call of {gone} any more, and no other instead")
    frees = _gone(_only(_FREE, gone_calls), moved)
    if frees and not _only(_FREE, new_calls):
        yield _finding(new, "free_removed", f"{frees} frees nothing here any more: it may leak")


def _otherwise(old: _Function, new: _Function) -> Iterator[Finding]:
    """Find other changes by which the crashing code may no longer be reached."""
    if allocations := new.allocations - old.allocations:
        message = f"an allocation changes: {_list(allocations)}"
        yield _finding(new, "allocation_changed", message)
    if new.exits > old.exits:
        message = "it returns without an error in more places than before: it may skip work"
        yield _finding(new, "skips_work", message)
    if new.loops > old.loops:
        yield _finding(new, "loops_more", "it has more loops than before: it may wait for ever")
    if kept := new.kept - old.kept:
        message = f"{_list(kept)} outlives the call: the next call may behave differently"
        yield _finding(new, "keeps_state", message)
    yield from _values(old, new)


def _values(old: _Function, new: _Function) -> Iterator[Finding]:
    values = [check for check in new.checks - old.checks if _VALUE.fullmatch(check)]
    if values:
        message = f"it behaves differently for one value: {_list(Counter(values))}"
        yield _finding(new, "fixed_value", message)


def _only(pattern: re.Pattern[str], names: Counter[str]) -> Counter[str]:
    return Counter({name: n for name, n in names.items() if pattern.fullmatch(name)})


def _gone(names: Counter[str], moved: Counter[str]) -> str:
    """Return a readable list of the names that did not move elsewhere."""
    return _list(names - moved)


def _list(names: Counter[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _finding(function: _Function, reason: str, message: str, line: int = 0) -> Finding:
    return Finding(
        check="amputation",
        severity=Severity.BLOCKING if reason in _BLOCKING else Severity.NOTE,
        reason=reason,
        message=f"{function.name}(): {message}",
        file=function.file,
        line=line or function.line,
        function=function.name,
    )


def _calls_of(functions: Mapping[tuple[str, int], _Function]) -> Counter[str]:
    total: Counter[str] = Counter()
    for function in functions.values():
        total += function.calls + function.assertions
    return total


# --- from a file to its functions ---------------------------------------------------------------


def _functions(files: Mapping[str, bytes]) -> dict[tuple[str, int], _Function]:
    """Return the functions, by name and number of earlier functions with that name.

    Branches of an #ifdef may define a name several times. The file is not part of the key, as a
    function may move to another file.
    """
    result: dict[tuple[str, int], _Function] = {}
    seen: Counter[str] = Counter()
    for path, content in sorted(files.items()):
        if not path.endswith((".c", ".h")):
            continue
        for name, body in _bodies(Parser(_LANGUAGE).parse(content).root_node):
            function = _Function(name, path, body.start_point[0] + 1)
            _read(body, function)
            result[name, seen[name]] = function
            seen[name] += 1
    return result


def _bodies(root: Node) -> Iterator[tuple[str, Node]]:
    """Yield names and bodies of functions, in their order in the file."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type == "function_definition":
            body = node.child_by_field_name("body")
            if body is not None:
                yield _name(node), body
        elif node.type == "compound_statement":  # below a macro: SYSCALL_DEFINE2(…) { … }
            yield _macro(_text(node.prev_sibling)), node
        else:
            stack += reversed(_live_children(node))


def _name(function: Node) -> str:
    node = function.child_by_field_name("declarator")
    while node is not None and node.type != "identifier":
        inner = node.child_by_field_name("declarator")
        node = inner if inner is not None else next(iter(node.named_children), None)
    if node is not None:
        return _text(node)
    return _macro((function.text or b"").decode(errors="replace"))


def _macro(text: str) -> str:
    """Return a name for what a macro defines: the macro and its first argument."""
    match = re.match(r"\w+(\(\w+)?", text)
    return match[0].replace("(", " ") if match else "?"


def _read(body: Node, function: _Function) -> None:
    """Add the features of the body to `function`."""
    stack = [body]
    while stack:
        node = stack.pop()
        if node.type == "call_expression":
            _read_call(node, function)
        elif node.type == "compound_statement":
            _read_block(node, function)
        function.arms += node.type in _ARMS
        function.loops += node.type in _LOOPS
        function.exits += node.type == "return_statement" and _squeezed(node) in _WELL
        if node.type == "declaration" and _text(node).startswith("static "):
            function.kept[_squeezed(node).removeprefix("static")] += 1
        _read_joined(node, function)
        condition = node.child_by_field_name("condition")
        if node.type in _CONDITIONAL and condition is not None:
            _read_condition(condition, function, loops=node.type not in _NO_LOOP)
        stack += _live_children(node)


def _read_joined(node: Node, function: _Function) -> None:
    """Add constants that are operands of && or ||, in conditions or elsewhere."""
    operator = node.child_by_field_name("operator")
    if node.type == "binary_expression" and operator is not None:
        texts = (
            (_squeezed(operand) for operand in node.named_children)
            if _text(operator) in _JOINS
            else ()
        )
        function.constants.update(text for text in texts if text in _CONSTANTS)


def _read_call(node: Node, function: _Function) -> None:
    callee = node.child_by_field_name("function")
    name = _squeezed(callee)
    if _ASSERTION.fullmatch(name):
        function.assertions[name] += 1
    elif name not in _HINTS and not _LOGGING.fullmatch(name):
        function.calls[name] += 1
        if _ALLOCATION.fullmatch(name):
            function.allocations[_squeezed(node)] += 1


def _read_block(block: Node, function: _Function) -> None:
    leaves = False
    for node in block.named_children:
        if node.type in {"comment", "declaration"} or node.type.startswith("preproc"):
            continue
        # Code after a label or a case can be reached from elsewhere.
        leaves = leaves and node.type not in {"labeled_statement", "case_statement"}
        if leaves and not function.dead:
            function.dead = node.start_point[0] + 1
        always = node.type in {"return_statement", "goto_statement"} or _is_always(node)
        leaves = leaves or always
        trivial = node.type == "return_statement" and not _works(node)
        function.works += not trivial and node.type not in {"compound_statement", ";"}


def _is_always(node: Node) -> bool:
    """Return whether this is `if (1) return …;`."""
    if node.type != "if_statement" or (test := node.child_by_field_name("condition")) is None:
        return False
    inner = node.child_by_field_name("consequence")
    while inner is not None and inner.type == "compound_statement" and inner.named_children:
        inner = inner.named_children[0]
    constant = _CONSTANTS.get(_bare(_squeezed(test)), False)
    return constant and inner is not None and inner.type == "return_statement"


def _works(node: Node) -> bool:
    """Return whether an expression does more than name a value: it calls, assigns or reads."""
    stack = list(node.named_children)
    while stack:
        descendant = stack.pop()
        if descendant.type in _WORK:
            return True
        stack += descendant.named_children
    return False


def _read_condition(node: Node, function: _Function, *, loops: bool) -> None:
    """Add the operands of && and || in a condition."""
    stack = [node]
    while stack:
        part = stack.pop()
        operator = part.child_by_field_name("operator")
        joins = part.type == "binary_expression" and operator is not None
        if part.type == "parenthesized_expression" or (joins and _text(operator) in _JOINS):
            stack += part.named_children
            continue
        if part.type == "comment":
            continue
        text = _bare(_squeezed(part))
        if text in _CONSTANTS:
            function.constants[text] += not loops  # `while (1)` is how loops are written
        else:
            function.checks[_unsigned(text)] += 1


def _live_children(node: Node) -> list[Node]:
    """Return the children, without code that `#if 0` disables."""
    if node.type in {"preproc_if", "preproc_elif"}:
        condition = node.child_by_field_name("condition")
        if condition is not None and _text(condition) in _DISABLED:
            alternative = node.child_by_field_name("alternative")
            return [alternative] if alternative is not None else []
    return node.named_children


def _unsigned(check: str) -> str:
    """Return the same form for a test and its negation: to invert a test removes nothing."""
    check = check.lstrip("!")
    for operator, opposite in _OPPOSITE.items():
        check = check.replace(operator, opposite)
    return _bare(check)


def _bare(text: str) -> str:
    """Return an expression without surrounding hints and parentheses."""
    for _ in range(_LAYERS):
        match = re.fullmatch(rf"(?:{'|'.join(_HINTS)}|!!)?\((.*)\)", text)
        if match is None:
            return text
        inner, depth = match[1], 0
        for char in inner:
            depth += (char == "(") - (char == ")")
            if depth < 0:
                return text
        text = inner
    return text


def _squeezed(node: Node | None) -> str:
    return re.sub(r"\s+", "", _text(node))


def _text(node: Node | None) -> str:
    if node is None:
        return ""
    if node.end_byte - node.start_byte > _TEXT_BYTES:
        return f"{node.type} of {node.end_byte - node.start_byte} bytes"
    return (node.text or b"").decode(errors="replace").strip()

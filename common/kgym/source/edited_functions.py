"""Functions of a C file: their places, and which of them a fix edits. Pure."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter_c
from tree_sitter import Language, Node, Parser

_C = Language(tree_sitter_c.language())
_BRACKETS = frozenset("(){}[]")
# Levels of a syntax tree above a function: nested #if, and nodes of parse errors.
_DEEPEST = 200
# Processor seconds for a parse. A function of 100,000 characters takes 0.1 s.
_SECONDS = 1.0
_PART = 1 << 16
_NAMED_BY_ARGUMENT = ("SYSCALL_DEFINE", "COMPAT_SYSCALL_DEFINE")


def edited(before: str, after: str) -> set[str]:
    """Return the names of functions of `before` that `after` changes or removes.

    System calls are named `sys_NAME`. Added functions are left out: no trace of the unfixed kernel
    can show them.
    """
    old, new = _functions(before), _functions(after)
    return {name for name, text in old.items() if new.get(name) != text}


def changed(before: str, after: str) -> set[str]:
    """Return the names of functions that differ, including added and removed ones."""
    old, new = _functions(before), _functions(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


@dataclass(frozen=True, slots=True)
class Place:
    """A function's half-open ranges: lines `begin` to `end` from 0, bytes `first` to `behind`."""

    name: str
    begin: int
    end: int
    first: int
    behind: int
    whole: bool
    """Whether the parser found all of its brackets."""


@lru_cache(maxsize=64)
def places(text: str) -> tuple[Place, ...]:
    """Return the places of a file's functions in order, without those that do not parse."""
    return tuple(
        Place(
            name,
            parts[0].start_point.row,
            parts[-1].end_point.row + 1,
            parts[0].start_byte,
            parts[-1].end_byte,
            not any(map(_lacks_bracket, parts)),
        )
        for name, parts in _definitions(Parser(_C).parse(text.encode()).root_node)
    )


def is_quick(text: str) -> bool:
    """Return whether a text parses within a second.

    Parse time is not linear: a chain like `if(a)else if(a)…` takes far longer than real code.
    """
    data, end = text.encode(), time.thread_time() + _SECONDS
    try:
        Parser(_C).parse(
            lambda at, _: data[at : at + _PART],
            progress_callback=lambda *_: time.thread_time() > end,
        )
    except ValueError:
        return False
    return True


def _lacks_bracket(node: Node) -> bool:
    """Return whether the parser inserted a bracket. An inserted `;` after a macro is no error."""
    left = [node]
    while left:
        child = left.pop()
        if child.is_missing and child.type in _BRACKETS:
            return True
        if child.has_error:
            left += child.children
    return False


def _functions(text: str) -> dict[str, bytes]:
    texts: dict[str, bytes] = {}
    for name, parts in _definitions(Parser(_C).parse(text.encode()).root_node):
        texts[name] = texts.get(name, b"") + b"".join(part.text or b"" for part in parts)
    return texts


def _definitions(root: Node) -> Iterator[tuple[str, list[Node]]]:
    """Yield each function's name and its nodes, in order.

    Deeper nesting than in any real code is skipped: hostile input could exhaust the stack.
    """
    left = [iter(_parts(root))]
    while left:
        for part in left[-1]:
            if isinstance(part, Node):
                if len(left) == _DEEPEST:
                    continue
                left.append(iter(_parts(part)))
                break
            yield part
        else:
            left.pop()


def _parts(node: Node) -> Iterator[tuple[str, list[Node]] | Node]:
    """Yield a node's own functions, and the child nodes that may contain more."""
    if node.type == "function_definition":
        if (name := _name(node)) is not None:
            yield name, [node]
        return
    children = node.named_children
    for number, child in enumerate(children):
        # `SYSCALL_DEFINE1(name, …) { … }` is read as a call before a block.
        if child.type == "compound_statement" and number:
            head = children[number - 1]
            if (name := _macro_name(head)) is not None:
                yield name, [head, child]
        elif child.type not in {"declaration", "comment"}:
            yield child


def _name(node: Node) -> str | None:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "identifier":
        if declarator.type == "function_declarator":
            inner = declarator.child_by_field_name("declarator")
            name = _text(inner)
            if name.startswith(_NAMED_BY_ARGUMENT):
                return _first_argument(_text(declarator))
            declarator = inner
        else:
            declarator = declarator.child_by_field_name("declarator") or next(
                (child for child in declarator.named_children if "declarator" in child.type), None
            )
    if declarator is None:
        return _macro_name(node)
    return _text(declarator)


def _macro_name(node: Node) -> str | None:
    text = _text(node).lstrip()
    return _first_argument(text) if text.startswith(_NAMED_BY_ARGUMENT) else None


def _first_argument(text: str) -> str:
    name = text.partition("(")[2].split(",")[0].split(")")[0].strip()
    return f"{'compat_' * text.startswith('COMPAT_')}sys_{name}"


def _text(node: Node | None) -> str:
    return (node.text or b"").decode(errors="replace") if node is not None else ""

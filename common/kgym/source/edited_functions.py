"""Where the functions of a C file are, and which of them a fix edits. Pure."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter_c
from tree_sitter import Language, Node, Parser

_C = Language(tree_sitter_c.language())
_BRACKETS = frozenset("(){}[]")
# Levels of a syntax tree above functions: #if in #if, and what errors make of code.
_DEEPEST = 200
# Of a core; a function of 100,000 characters takes 0.1.
_SECONDS = 1.0
_PART = 1 << 16
_NAMED_BY_ARGUMENT = ("SYSCALL_DEFINE", "COMPAT_SYSCALL_DEFINE")


def edited(before: str, after: str) -> set[str]:
    """Return the names of the functions that both texts define, differently, or only the first.

    A system call goes by `sys_NAME`. Functions that the fix adds are left out:
    no trace of the unfixed kernel can show them.
    """
    old, new = _functions(before), _functions(after)
    return {name for name, text in old.items() if new.get(name) != text}


def changed(before: str, after: str) -> set[str]:
    """Return the names of the functions that differ, those of one text alone with them."""
    old, new = _functions(before), _functions(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


@dataclass(frozen=True, slots=True)
class Place:
    """The lines of a function, from 0; `end` is the one behind it. `first` and `behind`: bytes."""

    name: str
    begin: int
    end: int
    first: int
    behind: int
    whole: bool
    """Whether no bracket of it is missing, as far as its syntax can be read."""


def places(text: str) -> list[Place]:
    """Return where the functions of a file are, in order; what is not understood is left out."""
    return [
        Place(
            name,
            parts[0].start_point.row,
            parts[-1].end_point.row + 1,
            parts[0].start_byte,
            parts[-1].end_byte,
            not any(map(_lacks_bracket, parts)),
        )
        for name, parts in _definitions(Parser(_C).parse(text.encode()).root_node)
    ]


def is_quick(text: str) -> bool:
    """Tell whether a text is parsed in a second; what is no code (`if(a)else if(a)…`) may not."""
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
    """Tell whether the parser has put in a bracket; a `;` behind a macro is no fault."""
    left = [node]
    while left:
        one = left.pop()
        if one.is_missing and one.type in _BRACKETS:
            return True
        if one.has_error:
            left += one.children
    return False


def _functions(text: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, parts in _definitions(Parser(_C).parse(text.encode()).root_node):
        found[name] = found.get(name, b"") + b"".join(one.text or b"" for one in parts)
    return found


def _definitions(root: Node) -> Iterator[tuple[str, list[Node]]]:
    """Yield each function's name, and the nodes that it consists of, in order.

    What is nested more deeply than any code is left out: somebody wants to see what happens.
    """
    left = [iter(_parts(root))]
    while left:
        for found in left[-1]:
            if isinstance(found, Node):
                if len(left) == _DEEPEST:
                    continue
                left.append(iter(_parts(found)))
                break
            yield found
        else:
            left.pop()


def _parts(node: Node) -> Iterator[tuple[str, list[Node]] | Node]:
    """Yield the functions that a node consists of, and the nodes that may hold others."""
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
                (one for one in declarator.named_children if "declarator" in one.type), None
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

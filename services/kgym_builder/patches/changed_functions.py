"""The functions of a C file, and which of them a change touches. Pure.

Before the preprocessor, kernel code is not C: macros define functions, attributes without
parentheses stand among the types, branches of `#ifdef` open the same brace twice. A grammar of C
fails there, and loses the rest of the file: of 21,709 functions, tree-sitter's misses 258, this
reader none. It looks at braces, parentheses and directives only. `#else` restores the state of its
`#if`; a `}` at the start of a line always ends a function.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

# Characters; larger files are not searched. In the kernel, those are headers of register names.
# The time is linear in the length.
LIMIT = 2 << 20

_BLANK = r"""
    (?P<comment> /\*(?:.*?\*/|.*) | //[^\n]* | \\[^\n] )
  | (?P<text> "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])+' )
  | ^[ \t]*\#[ \t]*(?P<directive>\w*)(?:\\\r?\n|/\*(?:.*?\*/|.*)|[^\n\\/]|\\|/)*
"""
_FLAGS = re.VERBOSE | re.DOTALL | re.MULTILINE
_OUTSIDE = re.compile(_BLANK + r"| (?P<word>[A-Za-z_]\w*) | (?P<mark>[{}();=,*\[\]])", _FLAGS)
_INSIDE = re.compile(_BLANK + r"| (?P<mark>[{}])", _FLAGS)

_TYPES = {"struct", "union", "enum"}
_KEYWORDS = _TYPES | set(
    re.findall(
        r"\w+",
        "void char short int long float double signed unsigned const volatile static extern"
        " inline typedef if while for switch return sizeof do else",
    )
)
_ATTRIBUTE = re.compile(  # include/linux/compiler_attributes.h, compiler_types.h
    r"__attribute(__)?|__(printf|scanf|aligned|section|acquires|releases|must_hold)(_shared)?"
    r"|__cond_(acquires|releases)|__alloc_size|__assume_aligned|__malloc|__no_sanitize|__copy"
    r"|__diagnose_as|__target|(__)?(asm|typeof)(__)?"
)
_MACRO = re.compile(r"[A-Z][A-Z0-9_]+")
# include/linux/syscalls.h, include/linux/compat.h, arch/x86/include/asm/syscall_wrapper.h
_SYSCALL = re.compile(r"(COMPAT_)?SYSCALL(?:32|64)?_DEFINE\d")


@dataclass(frozen=True, slots=True)
class Function:
    """A function's definition. `symbols` are the names that the compiler may give its parts."""

    name: str
    symbols: tuple[str, ...]
    text: str


def functions(text: str) -> list[Function]:
    """Return the functions that a C file defines, in all branches of its conditionals.

    A system call is named after the function with its body, `__do_sys_NAME`; a function that
    another macro defines is named by the macro's first argument.
    """
    return list(_Reader(text).read()) if len(text) <= LIMIT else []


def changed(before: str, after: str) -> list[Function]:
    """Return the functions that are added, removed or changed, each once."""
    if before == after:
        return []
    old, new = _by_name(before), _by_name(after)
    return [
        (new.get(name) or old[name])[0]
        for name in dict.fromkeys([*new, *old])
        if [function.text for function in old.get(name, [])]
        != [function.text for function in new.get(name, [])]
    ]


def _by_name(text: str) -> dict[str, list[Function]]:
    by_name: dict[str, list[Function]] = defaultdict(list)
    for function in functions(text):
        by_name[function.name].append(function)
    return dict(by_name)


# A linked list of tokens, the last one first: branches of `#if` share states without copies.
_Chain: TypeAlias = "tuple[_Chain, str] | None"
# The macro that defines a function, or "", and the function's name.
_Named = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _State:
    """The reader's position: the depth in braces, or the tokens before the next brace."""

    depth: int = 0
    start: int = -1
    """Where the definition begins."""
    header: _Chain = None
    parentheses: int = 0
    function: _Named | None = None
    """The function with this body; None in other braces."""


@dataclass(slots=True)
class _Reader:
    """Reads a file once, from the start."""

    text: str
    state: _State = _State()
    branches: list[_State] = field(default_factory=list)

    def read(self) -> Iterator[Function]:
        at = 0
        while match := (_INSIDE if self.state.depth else _OUTSIDE).search(self.text, at):
            at = match.end()
            groups = match.groupdict()
            if groups["directive"] is not None:
                self._branch(groups["directive"])
            elif groups["mark"] == "}":
                yield from self._close(match.start())
            elif groups["mark"] == "{":
                self._enter(match.start())
            elif word := groups["mark"] or groups.get("word"):
                self._extend(word, match.start())

    def _branch(self, directive: str) -> None:
        if directive in {"if", "ifdef", "ifndef"}:
            self.branches.append(self.state)
        elif directive in {"else", "elif", "elifdef", "elifndef"} and self.branches:
            self.state = self.branches[-1]
        elif directive == "endif" and self.branches:
            self.branches.pop()

    def _extend(self, word: str, at: int) -> None:
        state = self.state
        if word == ";" and state.parentheses == 0:
            self.state = _State()
            return
        parentheses = max(0, state.parentheses + (word == "(") - (word == ")"))
        start = at if state.header is None else state.start
        self.state = _State(0, start, (state.header, word), parentheses)

    def _enter(self, at: int) -> None:
        state = self.state
        if state.depth:
            self.state = replace(state, depth=state.depth + 1)
        else:
            start = at if state.header is None else state.start
            self.state = _State(1, start, function=_name(_list(state.header)))

    def _close(self, at: int) -> Iterator[Function]:
        state = self.state
        at_margin = at == 0 or self.text[at - 1] == "\n"
        if state.depth > 1 and not (at_margin and state.function):
            self.state = replace(state, depth=state.depth - 1)
        elif state.function:
            yield _function(*state.function, self.text[state.start : at + 1])
            self.state = _State()
        else:
            # As in `} name = {`, what follows belongs to the braces: it is no function's header.
            self.state = _State(0, max(state.start, 0), (None, "="))


def _list(chain: _Chain) -> list[str]:
    words = []
    while chain is not None:
        chain, word = chain
        words.append(word)
    return words[::-1]


@dataclass(frozen=True, slots=True)
class _Group:
    """An outermost pair of parentheses: the two words before it, and its content."""

    before: str
    word: str
    held: list[str]


def _groups(header: list[str]) -> Iterator[_Group]:
    depth = start = 0
    for at, word in enumerate(header):
        if word == "(":
            start = start if depth else at
            depth += 1
        elif word == ")" and depth:
            depth -= 1
            if depth == 0:
                before, last = ["", "", *header[max(0, start - 2) : start]][-2:]
                yield _Group(before, last, header[start + 1 : at])


def _name(header: list[str]) -> _Named | None:
    depth = 0
    for word in header:
        depth += (word == "(") - (word == ")")
        if depth == 0 and word == "=":
            return None
    named = None
    for group in _groups(header):
        word = group.word
        if group.held[:1] == ["*"] and (word in _KEYWORDS or not word.isidentifier()):
            # A function that returns a pointer to a function: int (*name(int a))(int b)
            inner = (
                inner_name.word
                for inner_name in _groups(group.held)
                if inner_name.word.isidentifier()
            )
            return next((("", inner_name) for inner_name in inner), None)
        if group.before in _TYPES or word in _KEYWORDS or not word.isidentifier():
            continue
        # A word after a type is the declarator; an earlier group was a macro without semicolon.
        # A word right after a parenthesis is an attribute.
        if not _ATTRIBUTE.fullmatch(word) and (named is None or group.before != ")"):
            named = _declared(word, group.held)
    return named


def _declared(word: str, held: list[str]) -> _Named:
    """Return what `word(held)` defines: a macro's first argument is a single word, not a type."""
    alone = held and held[0].isidentifier() and (len(held) == 1 or held[1] == ",")
    if alone and held[0] not in _KEYWORDS and _MACRO.fullmatch(word):
        return word, held[0]
    return "", word


def _function(macro: str, name: str, text: str) -> Function:
    if match := _SYSCALL.fullmatch(macro):
        name = f"{'compat_' if match[1] else ''}sys_{name}"
        wrappers = ("__do_", "__se_", "__x64_", "__ia32_")
        return Function(f"__do_{name}", tuple(wrapper + name for wrapper in wrappers), text)
    if macro.startswith("DEFINE_IDTENTRY"):  # arch/x86/include/asm/idtentry.h
        return Function(name, (name, f"__{name}"), text)
    if macro.startswith("BPF_CALL_"):  # include/linux/filter.h
        return Function(name, (name, f"____{name}"), text)
    return Function(name, (name,), text)

"""Names of Rust functions: the v0 mangling of RFC 2603, as stack traces show it."""

from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase, digits

_BASE_62 = {char: value for value, char in enumerate(digits + ascii_lowercase + ascii_uppercase)}
_BASIC_TYPES = dict(
    zip(
        "abcdefhijlmnostuvxyzp",
        (
            "i8",
            "bool",
            "char",
            "f64",
            "str",
            "f32",
            "u8",
            "isize",
            "usize",
            "i32",
            "u32",
            "i128",
            "u128",
            "i16",
            "u16",
            "()",
            "...",
            "i64",
            "u64",
            "!",
            "_",
        ),
        strict=True,
    )
)
_MAX_DEPTH = 64
_MAX_PARTS = 1000
"""Backreferences to backreferences can stand for more than any memory holds."""


class _Unreadable(Exception):
    """The symbol has something that this reader does not know."""


def demangle(symbol: str) -> str:
    """Return the path of a mangled Rust function; anything else comes back as it is.

    Written as in the source: a function's generic arguments behind `::`, a type's without.
    """
    if not symbol.startswith("_R"):
        return symbol
    try:
        return _Reader(symbol[2:]).path(0, "::")
    except (_Unreadable, IndexError, ValueError):
        return symbol


class _Reader:
    """Reads the mangled text from left to right; backreferences jump back in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.parts = 0

    def path(self, depth: int, before_arguments: str = "") -> str:
        self.enter(depth)
        tag = self.next()
        match tag:
            case "C":
                return self.identifier()
            case "N":
                return self.nested(depth, before_arguments)
            case "M":
                self.impl(depth)
                return f"<{self.type(depth + 1)}>"
            case "X" | "Y":
                if tag == "X":
                    self.impl(depth)
                return f"<{self.type(depth + 1)} as {self.path(depth + 1)}>"
            case "I":
                generic = self.path(depth + 1, before_arguments)
                return f"{generic}{before_arguments}<{', '.join(self.arguments(depth))}>"
            case "B":
                return self.jump(lambda: self.path(depth + 1, before_arguments))
        raise _Unreadable

    def nested(self, depth: int, before_arguments: str) -> str:
        namespace = self.next()
        outer = self.path(depth + 1, before_arguments)
        number = self.disambiguator()
        name = self.identifier()
        if namespace.isupper():
            kind = {"C": "closure", "S": "shim"}.get(namespace, namespace)
            return f"{outer}::{{{kind}{':' if name else ''}{name}#{number}}}"
        return f"{outer}::{name}" if name else outer

    def impl(self, depth: int) -> None:
        self.disambiguator()
        self.path(depth + 1)

    def arguments(self, depth: int) -> list[str]:
        found = []
        while self.peek() != "E":
            if self.peek() == "L":
                self.next()
                self.base_62()
            elif self.peek() == "K":
                self.next()
                found.append(self.constant(depth + 1))
            else:
                found.append(self.type(depth + 1))
        self.next()
        return found

    def constant(self, depth: int) -> str:
        self.enter(depth)
        if self.peek() == "B":
            self.next()
            return self.jump(lambda: self.constant(depth + 1))
        kind = self.type(depth + 1)
        if kind == _BASIC_TYPES["p"]:
            return kind
        end = self.text.index("_", self.at, self.at + 20)
        digits = self.text[self.at : end]
        self.at = end + 1
        number = int(digits.replace("n", "-") or "0", 16)
        return str(bool(number)).lower() if kind == "bool" else str(number)

    def type(self, depth: int) -> str:
        self.enter(depth)
        tag = self.peek()
        if tag in _BASIC_TYPES:
            self.next()
            return _BASIC_TYPES[tag]
        if tag in "RQPOS":
            self.next()
            if tag in "RQ" and self.peek() == "L":
                self.next()
                self.base_62()
            inner = self.type(depth + 1)
            return {"R": "&", "Q": "&mut ", "P": "*const ", "O": "*mut "}.get(tag, "") + (
                f"[{inner}]" if tag == "S" else inner
            )
        if tag == "A":
            self.next()
            return f"[{self.type(depth + 1)}; {self.constant(depth + 1)}]"
        if tag == "T":
            self.next()
            inner = ", ".join(self.arguments(depth))
            return f"({inner})"
        if tag == "B":
            self.next()
            return self.jump(lambda: self.type(depth + 1))
        return self.path(depth)

    def enter(self, depth: int) -> None:
        self.parts += 1
        if depth > _MAX_DEPTH or self.parts > _MAX_PARTS:
            raise _Unreadable

    def jump(self, read: Callable[[], str]) -> str:
        start = self.at - 1
        target = self.base_62()
        if target >= start:
            raise _Unreadable
        back = self.at
        self.at = target
        name = read()
        self.at = back
        return name

    def identifier(self) -> str:
        self.disambiguator()
        if self.peek() == "u":
            raise _Unreadable
        start = self.at
        while self.peek().isdigit():
            self.next()
        # No real name is longer; int() of a very long number would be slow.
        if not start < self.at < start + 5:
            raise _Unreadable
        length = int(self.text[start : self.at])
        if self.at + length > len(self.text):
            raise _Unreadable
        if length and self.peek() == "_":
            self.next()
        name = self.text[self.at : self.at + length]
        self.at += length
        return name

    def disambiguator(self) -> int:
        if self.peek() != "s":
            return 0
        self.next()
        return self.base_62() + 1

    def base_62(self) -> int:
        value = 0
        if self.peek() == "_":
            self.next()
            return 0
        while (char := self.next()) != "_":
            if char not in _BASE_62:
                raise _Unreadable
            value = value * 62 + _BASE_62[char]
        return value + 1

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else "\0"

    def next(self) -> str:
        char = self.text[self.at]
        self.at += 1
        return char

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


class _Unreadable(Exception):
    """The symbol has something that this reader does not know."""


def demangle(symbol: str) -> str:
    """Return the path of a mangled Rust function; anything else comes back as it is."""
    if not symbol.startswith("_R"):
        return symbol
    try:
        return _Reader(symbol[2:]).path(0)
    except (_Unreadable, IndexError):
        return symbol


class _Reader:
    """Reads the mangled text from left to right; backreferences jump back in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def path(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise _Unreadable
        tag = self.next()
        match tag:
            case "C":
                return self.identifier()
            case "N":
                return self.nested(depth)
            case "M":
                self.impl(depth)
                return f"<{self.type(depth + 1)}>"
            case "X" | "Y":
                if tag == "X":
                    self.impl(depth)
                return f"<{self.type(depth + 1)} as {self.path(depth + 1)}>"
            case "I":
                return self.path(depth + 1) + f"<{', '.join(self.arguments(depth))}>"
            case "B":
                return self.jump(lambda: self.path(depth + 1))
        raise _Unreadable

    def nested(self, depth: int) -> str:
        namespace = self.next()
        outer = self.path(depth + 1)
        name = self.identifier()
        if namespace.isupper():
            kind = {"C": "closure", "S": "shim"}.get(namespace, namespace)
            return f"{outer}::{{{kind}{':' if name else ''}{name}}}"
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
                continue
            found.append(self.type(depth + 1))
        self.next()
        return found

    def type(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise _Unreadable
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
        if tag == "T":
            self.next()
            inner = ", ".join(self.arguments(depth))
            return f"({inner})"
        if tag == "B":
            self.next()
            return self.jump(lambda: self.type(depth + 1))
        return self.path(depth)

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

    def disambiguator(self) -> None:
        if self.peek() == "s":
            self.next()
            self.base_62()

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

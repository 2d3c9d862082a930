"""Demangling of Rust functions: v0 mangling (RFC 2603), and the legacy one."""

import re
from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase, digits

_MAX_DEPTH = 64
# Nested backreferences can expand exponentially.
_MAX_PARTS = 1000
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
# `_ZN`, the parts of the path with their lengths, a hash as the last part: rustc's default if v0 is
# not requested. The same without a hash is C++, whose names are left unchanged.
_LEGACY = re.compile(r"_ZN(.+)17h[0-9a-f]{16}E")
_ESCAPE = re.compile(r"\$(\w{1,3})\$")
_ESCAPES = dict(zip(["SP", "BP", "RF", "LT", "GT", "LP", "RP", "C"], "@*&<>(),", strict=True)) | {
    f"u{ord(char):02x}": char for char in " \"'+;[]{}~"
}


def demangle(symbol: str) -> str:
    """Return the source name of a mangled Rust function; other names are returned unchanged.

    A function's generic arguments follow `::`.
    """
    try:
        if symbol.startswith("_R"):
            return _Reader(symbol[2:]).path(0, "::")
        if legacy := _LEGACY.fullmatch(symbol):
            return _Reader(legacy[1]).legacy_path()
    except (_Unreadable, IndexError, ValueError):
        pass
    return symbol


class _Unreadable(Exception):
    """The symbol contains something unknown."""


class _Reader:
    """Recursive descent parser of a symbol; backreferences jump back in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._parts = 0

    def enter(self, depth: int) -> None:
        """Count another part of the name, at nesting level `depth`; both are limited."""
        self._parts += 1
        if depth > _MAX_DEPTH or self._parts > _MAX_PARTS:
            raise _Unreadable

    def peek(self) -> str:
        """Return the next character, NUL at the end."""
        return self.text[self.at] if self.at < len(self.text) else "\0"

    def next(self) -> str:
        """Take the next character; at the end there is an IndexError."""
        char = self.text[self.at]
        self.at += 1
        return char

    def length(self) -> int:
        """Take the decimal length of an identifier."""
        start = self.at
        while self.peek().isdigit():
            self.next()
        # No real name is longer; int() of a very long number would be slow.
        if not start < self.at < start + 5:
            raise _Unreadable
        return int(self.text[start : self.at])

    def take(self, length: int) -> str:
        """Take `length` characters."""
        if self.at + length > len(self.text):
            raise _Unreadable
        self.at += length
        return self.text[self.at - length : self.at]

    def legacy_path(self) -> str:
        """Read all parts of a legacy name."""
        parts = []
        while self.at < len(self.text):
            part = self.take(self.length()).replace("..", "::")
            part = part[1:] if part.startswith("_$") else part
            parts.append(_ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), part))
        return "::".join(parts)

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
        names = []
        while self.peek() != "E":
            if self.peek() == "L":
                self.next()
                self.base_62()
            elif self.peek() == "K":
                self.next()
                names.append(self.constant(depth + 1))
            else:
                names.append(self.type(depth + 1))
        self.next()
        return names

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
        length = self.length()
        if length and self.peek() == "_":
            self.next()
        return self.take(length)

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

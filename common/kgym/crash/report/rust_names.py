"""Names of Rust functions: the v0 mangling of RFC 2603, as stack traces show it."""

from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase, digits

from kgym.crash.report.mangled_names import Cursor, Unreadable

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


def path(text: str) -> str:
    """Return the path of a mangled function; `text` is what stands behind its `_R`."""
    return _Reader(text).path(0, "::")


class _Reader(Cursor):
    """Backreferences jump back in the text."""

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
        raise Unreadable

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

    def jump(self, read: Callable[[], str]) -> str:
        start = self.at - 1
        target = self.base_62()
        if target >= start:
            raise Unreadable
        back = self.at
        self.at = target
        name = read()
        self.at = back
        return name

    def identifier(self) -> str:
        self.disambiguator()
        if self.peek() == "u":
            raise Unreadable
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
                raise Unreadable
            value = value * 62 + _BASE_62[char]
        return value + 1

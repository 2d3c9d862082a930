"""What the readers of mangled names have in common: a cursor that no symbol can wear out."""

_MAX_DEPTH = 64
_MAX_PARTS = 1000
"""Backreferences to backreferences can stand for more than any memory holds."""


class Unreadable(Exception):
    """The symbol has something that its reader does not know."""


class Cursor:
    """Reads a symbol from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._parts = 0

    def enter(self, depth: int) -> None:
        """Count one more part of the name, `depth` parts deep; both have a limit."""
        self._parts += 1
        if depth > _MAX_DEPTH or self._parts > _MAX_PARTS:
            raise Unreadable

    def peek(self) -> str:
        """Return the next character, NUL at the end."""
        return self.text[self.at] if self.at < len(self.text) else "\0"

    def next(self) -> str:
        """Take the next character; at the end there is an IndexError."""
        char = self.text[self.at]
        self.at += 1
        return char

    def accept(self, word: str) -> bool:
        """Take `word` if it stands here."""
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def length(self) -> int:
        """Take the decimal length of an identifier."""
        start = self.at
        while self.peek().isdigit():
            self.next()
        # No real name is longer; int() of a very long number would be slow.
        if not start < self.at < start + 5:
            raise Unreadable
        return int(self.text[start : self.at])

    def take(self, length: int) -> str:
        """Take `length` characters."""
        if self.at + length > len(self.text):
            raise Unreadable
        self.at += length
        return self.text[self.at - length : self.at]

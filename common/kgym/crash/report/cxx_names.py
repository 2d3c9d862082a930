"""Names of C++ functions: the mangling of the Itanium ABI, as stack traces show it.

Of a function's symbol its name is read, with template arguments, and not the parameters behind it.
Rust's first mangling is the same, with a hash as the last part of each name.
"""

import re
from string import ascii_uppercase, digits

from kgym.crash.report.mangled_names import Cursor, Unreadable

_MAX_LENGTH = 1000
_BASE_36 = {char: value for value, char in enumerate(digits + ascii_uppercase)}
_BUILTINS = {
    "v": "void",
    "w": "wchar_t",
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "n": "__int128",
    "o": "unsigned __int128",
    "f": "float",
    "d": "double",
    "e": "long double",
}
_LITERALS = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_STANDARD = {
    "t": "std",
    "a": "std::allocator",
    "b": "std::basic_string",
    "s": "std::string",
    "i": "std::istream",
    "o": "std::ostream",
    "d": "std::iostream",
}
_QUALIFIERS = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile"}
_CODES = (
    "nw  new,na  new[],dl  delete,da  delete[],co ~,pl +,mi -,ml *,dv /,rm %,an &,or |,eo ^,"
    "aS =,pL +=,mI -=,mL *=,dV /=,rM %=,aN &=,oR |=,eO ^=,ls <<,rs >>,lS <<=,rS >>=,eq ==,ne !=,"
    "lt <,gt >,le <=,ge >=,ss <=>,nt !,aa &&,oo ||,pp ++,mm --,pt ->,cl (),ix [],de *,ng -,ps +"
)
_OPERATORS = {code[:2]: code[3:] for code in _CODES.split(",")}
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")


def function(text: str) -> str:
    """Return the name in a mangled function; `text` is what stands behind its `_Z`."""
    return _RUST_HASH.sub("", _Reader(text).name(0, is_type=False))


class _Reader(Cursor):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.seen: list[str] = []

    def name(self, depth: int, *, is_type: bool) -> str:
        self.enter(depth)
        if self.accept("N"):
            return self.nested(depth, is_type=is_type)
        if self.peek() == "S" and not self.text.startswith("St", self.at):
            name = self.substitution()
            if self.peek() != "I":
                return name
        else:
            namespace = "std::" if self.accept("St") else ""
            name = namespace + self.part("")
            if is_type or self.peek() == "I":
                self.see(name)
        if self.peek() == "I":
            name += self.arguments(depth)
            if is_type:
                self.see(name)
        return name

    def nested(self, depth: int, *, is_type: bool) -> str:
        while self.peek() in "rVKRO":
            self.next()  # how a member function takes its object
        name = last = ""
        while not self.accept("E"):
            self.enter(depth)
            if self.peek() == "S":
                if name:
                    raise Unreadable
                name = self.substitution()
                last = name.rpartition("::")[2]
                continue
            if self.peek() == "I":
                if not name:
                    raise Unreadable
                name += self.arguments(depth)
            else:
                part = self.part(last)
                name, last = (f"{name}::{part}" if name else part), part
            if is_type or self.peek() != "E":
                self.see(name)
        if not name:
            raise Unreadable
        return name

    def part(self, outer: str) -> str:
        """Read one name without its scope; `outer` is what it is in, which names constructors."""
        if self.peek().isdigit() or self.accept("L"):
            name = self.take(self.length())
            name = "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name
        else:
            code = self.take(2)
            if outer and code in ("C1", "C2", "C3"):
                name = outer
            elif outer and code in ("D0", "D1", "D2"):
                name = f"~{outer}"
            elif code in _OPERATORS:
                name = f"operator{_OPERATORS[code]}"
            else:
                raise Unreadable
        while self.accept("B"):
            name += f"[abi:{self.take(self.length())}]"
        return name

    def substitution(self) -> str:
        self.next()
        code = self.next()
        if code in _STANDARD:
            return _STANDARD[code]
        if code == "_":
            return self.seen[0]
        number = 0
        while code != "_":
            if code not in _BASE_36:
                raise Unreadable
            number = number * 36 + _BASE_36[code]
            code = self.next()
        return self.seen[number + 1]

    def arguments(self, depth: int) -> str:
        self.enter(depth)
        self.next()
        found = []
        while not self.accept("E"):
            if self.accept("L"):
                found.append(self.literal())
            elif self.peek() == "J":
                found.append(self.arguments(depth + 1)[1:-1].rstrip())
            else:
                found.append(self.type(depth + 1))
        listed = ", ".join(one for one in found if one)
        return self.bounded(f"<{listed}{' ' * listed.endswith('>')}>")

    def literal(self) -> str:
        kind = self.next()
        minus = "-" if self.accept("n") else ""
        end = self.text.index("E", self.at, self.at + 20)
        number = str(int(self.take(end - self.at)))
        self.next()
        if kind == "b":
            return str(number != "0").lower()
        if kind not in _LITERALS:
            raise Unreadable
        return minus + number + _LITERALS[kind]

    def type(self, depth: int) -> str:
        self.enter(depth)
        tag = self.peek()
        if tag in _BUILTINS:
            self.next()
            return _BUILTINS[tag]
        if tag in _QUALIFIERS:
            self.next()
            return self.see(self.type(depth + 1) + _QUALIFIERS[tag])
        return self.name(depth, is_type=True)

    def see(self, name: str) -> str:
        """Keep what later parts of the symbol may refer to by number."""
        self.seen.append(self.bounded(name))
        return name

    def bounded(self, name: str) -> str:
        if len(name) > _MAX_LENGTH:
            raise Unreadable
        return name

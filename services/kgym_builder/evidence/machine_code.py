"""Functions of an x86-64 object, parsed from the output of `objdump -drt`. Pure.

The output comes from hostile objects: lines of no known form are skipped.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

_FORMAT = "file format elf64-x86-64"
_SECTION = re.compile(r"Disassembly of section (\S+):")
_SYMBOL = re.compile(r"([0-9a-f]{1,16}) <([^<>\s]+)>:")
_INSTRUCTION = re.compile(r" *([0-9a-f]{1,16}):\t([^\t#]+)")
_RELOCATION = re.compile(r"\t+[0-9a-f]+: (R_X86_64_\w+)\t(\S+?)([+-]0x[0-9a-f]{1,16})?")
_PREFIX = re.compile(r"((lock|rep|repn?z|notrack|bnd|data16|[cd]s|addr32) )+")
_OPERAND = re.compile(r"(?:[^,(]|\([^)]*\))+")
_TARGET = re.compile(r"([0-9a-f]{1,16})(?: <.*>)?")
# Parts of a function that the compiler split off or specialised.
_PART = re.compile(r"\.(isra|constprop|part|cold|localalias|llvm)\b.*")
_NEVER_RETURN = re.compile(
    r"panic|do_(group_)?exit|make_task_dead|(kthread_)?(complete_and_)?exit|__stack_chk_fail"
    r"|_*fortify_panic|rewind_stack\w*|usercopy_abort|__ubsan_handle_builtin_unreachable"
)
_ONLY_READS = re.compile(r"(cmp|test|bt)[bwlq]?|call|jmp|push")
_ENDS = {"ret", "jmp", "ud2", "iret", "hlt"}


@dataclass(slots=True)
class Relocation:
    """A symbol that an instruction refers to; `target` is its address if it is in this object."""

    symbol: str
    addend: int
    target: int | None = None


@dataclass(slots=True)
class Instruction:
    """An instruction without its prefixes; operands in AT&T order, the destination last."""

    address: int
    mnemonic: str
    operands: list[str]
    target: int | None
    """The address in this object that it jumps to or calls."""
    relocations: list[Relocation] = field(default_factory=list)

    @property
    def is_jump(self) -> bool:
        """Whether it may continue elsewhere, other than a call."""
        return self.mnemonic.startswith(("j", "loop"))

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow it."""
        return self.mnemonic not in _ENDS and not _NEVER_RETURN.fullmatch(self.callee)

    @property
    def writes(self) -> bool:
        """Whether it changes memory."""
        last = self.operands[-1] if self.operands else "%"
        in_memory = "(" in last or ":" in last or not last.startswith("%")
        return in_memory and not _ONLY_READS.fullmatch(self.mnemonic)

    @property
    def callee(self) -> str:
        """The symbol that it calls; empty if it is no call, or an indirect one."""
        leaves = self.mnemonic in {"call", "jmp"} and not self.operands
        return self.relocations[0].symbol if leaves and self.relocations else ""


@dataclass(slots=True)
class Routine:
    """A symbol's code: the instructions up to the next symbol of its section."""

    symbol: str
    start: int
    instructions: list[Instruction] = field(default_factory=list)


def base_name(symbol: str) -> str:
    """Return a symbol without the compiler's suffixes."""
    return _PART.sub("", symbol)


class ObjectCode:
    """The code of an object; each section has an address range of its own."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.undefined: set[str] = set()
        self.readable = False
        """Whether it is an ELF object of this machine."""
        self._sections: dict[str, int] = {}
        self._by_start = {
            routine.start: routine for routine in self._parse(lines) if routine.instructions
        }
        self._sections |= {routine.symbol: routine.start for routine in self._by_start.values()}
        self.functions: dict[str, list[Routine]] = defaultdict(list)
        """Functions by their names in the source, each with all parts the compiler made of it."""
        self.texts: dict[str, list[str]] = defaultdict(list)
        """Their instructions, written so that moved code and strings make no difference."""
        self.references: dict[str, Counter[str]] = defaultdict(Counter)
        """The symbols that they refer to; counts only those that they write."""
        for routine in self._by_start.values():
            name = base_name(routine.symbol)
            self.functions[name].append(routine)
            for instruction in routine.instructions:
                place = self._resolve(instruction, routine)
                names = [relocation.symbol for relocation in instruction.relocations]
                words = [instruction.mnemonic, *instruction.operands, *names, place]
                self.texts[name].append(" ".join(words))
                for symbol in names:
                    self.references[name][symbol] += instruction.writes

    def _parse(self, lines: Iterable[str]) -> list[Routine]:
        base, routines = 0, [Routine("", 0)]
        for line in lines:
            instructions = routines[-1].instructions
            if match := _INSTRUCTION.match(line):
                instructions.append(_instruction(base, int(match[1], 16), match[2]))
            elif (match := _RELOCATION.fullmatch(line)) and instructions:
                # A relative address counts from the end of its four bytes.
                offset = 4 if match[1].endswith(("PC32", "PLT32")) else 0
                relocation = Relocation(match[2], int(match[3] or "0", 16) + offset)
                instructions[-1].relocations.append(relocation)
            elif match := _SYMBOL.fullmatch(line):
                routines.append(Routine(match[2], base + int(match[1], 16)))
            elif match := _SECTION.fullmatch(line):
                base = (len(self._sections) + 1) << 64
                self._sections[match[1]] = base
            elif " *UND*" in line:
                self.undefined.add(line.split()[-1])
            else:
                self.readable |= line.endswith(_FORMAT)
        return routines

    def _resolve(self, instruction: Instruction, routine: Routine) -> str:
        """Name what the instruction refers to; return where in its routine it jumps to."""
        for relocation in instruction.relocations:
            if (base := self._sections.get(relocation.symbol)) is not None:
                relocation.target = base + relocation.addend
                if holder := self._by_start.get(relocation.target):
                    relocation.symbol = holder.symbol
        if instruction.target is None:
            return ""
        if instruction.relocations:
            instruction.target = instruction.relocations[0].target
        elif holder := self._by_start.get(instruction.target):
            # The assembler resolves calls within a section itself.
            instruction.relocations.append(Relocation(holder.symbol, 0, holder.start))
        else:
            return str(instruction.target - routine.start)
        return ""

    def called(self, name: str, beyond: Collection[str] = ()) -> list[str]:
        """Return the function and those of this object that it uses, except those `beyond`."""
        known = {name: None}
        waiting = [name] * (name in self.functions)
        while waiting:
            for symbol in self.references.get(waiting.pop(), ()):
                callee = base_name(symbol)
                if callee in self.functions and callee not in known and callee not in beyond:
                    known[callee] = None
                    waiting.append(callee)
        return list(known)

    def refers(self, names: Iterable[str]) -> Counter[str]:
        """Return what these functions refer to."""
        total: Counter[str] = Counter()
        for name in names:
            total.update(self.references.get(name, {}))
        return total


def _instruction(base: int, offset: int, text: str) -> Instruction:
    mnemonic, _, rest = _PREFIX.sub("", " ".join(text.split()), count=1).partition(" ")
    match = _TARGET.fullmatch(rest) if mnemonic.startswith(("j", "loop", "call")) else None
    target = base + int(match[1], 16) if match else None
    return Instruction(base + offset, mnemonic, [] if match else _OPERAND.findall(rest), target)

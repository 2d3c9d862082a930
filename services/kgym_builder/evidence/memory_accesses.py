"""Which memory accesses of a function a sanitizer checks, from its machine code. Pure.

Registers and stack slots are followed through the function as sums of unknown values, so that an
access can be compared with the addresses that are passed to the sanitizer's functions. Where paths
meet with different values, a new unknown begins.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kgym.errors import UserError
from kgym_builder.evidence.machine_code import Instruction, ObjectCode, Routine

# Passes over a function until no value changes; few functions take over ten.
_MOST_SWEEPS = 60
CHECK = re.compile(
    r"__(?:hw)?asan_(?:report_)?(?:load|store)_?(?P<size>\w+?)(?:_noabort)?"
    r"|__tsan_(?:unaligned_|volatile_)*(?:read|write)_?(?P<bytes>\w+)"
    r"|__k[ac]san_check_(?:read|write|access)|__msan_metadata_ptr_for_\w+"
)
_BITS = {"bt", "bts", "btr", "btc"}
_NO_ACCESS = re.compile(r"jmp|lea|nop\w*|prefetch\w*|invlpg|clflush\w*|endbr64")
_NO_RESULT = re.compile(r"cmp[bwlq]?|test[bwlq]?|bt[lq]?|push|out\w*|nop\w*|j\w+|loop\w*|wrmsr")
_PADDING = re.compile(r"nop\w*|xchg|int3")
# Instructions that change registers besides their last operand: the first _COUNTS of _CLOBBERED.
_SPECIAL = re.compile(
    r"(?P<string>(movs|stos|lods|cmps|scas)[bwlq]?)|(?P<result>c[wl]t[lq]|cmpxchg\w*)"
    r"|xchg|xadd[bwlq]?|pop|leave|(?P<product>cqto|cltd|i?mul[lq]?|i?div[lq]?|rd(tsc|msr|pmc)\w*|cpuid)"
)
_COUNTS = {"result": 1, "product": 2, "string": 5}
_CLOBBERED = ("rax", "rdx", "rcx", "rsi", "rdi", "r8", "r9", "r10", "r11")
# Functions by the register with the user's address, and by the one with an allocation's size.
_COPIES = {
    "rdi": re.compile(r"_*copy_to_user\w*|copy_user_\w+|_*clear_user\w*|rep_movs_alternative"),
    "rsi": re.compile(r"_*copy_from_user\w*|strncpy_from_user\w*"),
    "rcx": re.compile(r"__put_user_\w+"),
    "rax": re.compile(r"__get_user_\w+"),
}
_SIZES = {
    "rdx": re.compile(r"_*kmalloc(_node)?_(trace|cache)\w*|kmem_cache_alloc(_node)?_trace"),
    "rsi": re.compile(r"kmemdup\w*"),
    "rdi": re.compile(r"_*kv?malloc(?!_trace|_node_trace|_cache|_node_cache)\w*|_*v[mz]alloc\w*"),
}
_ALLOCATION = re.compile(r"\w*(alloc|memdup|strdup|get_free_page)\w*")
_WORD = 1 << 64
Terms = tuple[tuple[int, int], ...]
_MOST_WAYS = 1000
_IMMEDIATE = re.compile(r"\$(-?0x[0-9a-f]+)")
_MEMORY_OPERAND = re.compile(r"\*?(?:%([c-gs]s):)?(-?0x[0-9a-f]+)?\(([^)]*)\)")
_NAMES = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")
_SIZED = (("r", 64), ("e", 32), ("", 16))
# Registers by operand: the whole register, and how many of its bits the operand is.
_REGISTERS = {
    **{f"%{wide}{name}": (f"r{name}", bits) for name in _NAMES for wide, bits in _SIZED},
    **{f"%{name}l": (f"r{name}", 8) for name in _NAMES[4:]},
    **{f"%{name[0]}{half}": (f"r{name}", 8) for name in _NAMES[:4] for half in "lh"},
    **{
        f"%r{number}{suffix}": (f"r{number}", bits)
        for number in range(8, 16)
        for suffix, bits in (("", 64), ("d", 32), ("w", 16), ("b", 8))
    },
}


@dataclass(frozen=True, slots=True)
class Value:
    """A sum of unknowns, each with its factor, and a constant."""

    terms: Terms = ()
    constant: int = 0

    def plus(self, other: "Value", factor: int = 1) -> "Value":
        """Return the sum of this and a multiple of the other."""
        terms = dict(self.terms)
        for unknown, count in other.terms:
            terms[unknown] = (terms.get(unknown, 0) + count * factor) % _WORD
        constant = (self.constant + other.constant * factor) % _WORD
        return Value(tuple(sorted((key, count) for key, count in terms.items() if count)), constant)


# By register, or by address on the stack.
State = dict[str | Value, Value]


@dataclass(slots=True)
class Accesses:
    """What functions do with memory."""

    checks: int = 0
    unchecked: list[str] = field(default_factory=list)
    """Instructions that access unchecked memory outside the function's stack frame."""
    user_copies: list[str] = field(default_factory=list)
    """Functions that copy from or to user memory, called with a kernel address for it."""
    sizes: list[tuple[bool, int]] = field(default_factory=list)
    """Sizes of allocations: whether a part is variable, and the constant part in bytes."""


def accesses(code: ObjectCode, names: Sequence[str]) -> Accesses:
    """Return what functions do with memory. Raises UserError `too_much_work`."""
    total = Accesses()
    for name in names:
        parts = code.functions.get(name, [])
        for routine in parts:
            if ".cold" not in routine.symbol:
                _Reader(name, routine, parts).read(total)
    return total


@dataclass(slots=True)
class _Block:
    """Instructions that run one after another, and the blocks before and after them."""

    instructions: list[Instruction] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    following: list[int] = field(default_factory=list)

    @property
    def is_table(self) -> bool:
        """Whether it ends with a jump to a computed address."""
        last = self.instructions[-1]
        computed = not last.callee or "indirect_thunk" in last.callee
        return last.mnemonic == "jmp" and last.target is None and computed


class _Reader:
    """Follows the values in one routine and its cold part."""

    def __init__(self, name: str, routine: Routine, parts: Sequence[Routine]) -> None:
        self.name = name
        self.numbers: dict[tuple[object, ...], int] = {}
        self.kinds: list[tuple[object, ...]] = []
        # Unknowns for values that differ where paths join, with the value of each path.
        self.inputs: dict[Value, set[Value]] = {}
        # Results of right shifts, with the shifted value: KASAN computes a shadow address that way.
        self.shifted: dict[Value, Value] = {}
        # Each by the address of its instruction.
        self.reached: dict[int, tuple[Instruction, Value]] = {}
        self.checked: dict[int, tuple[Value, int]] = {}
        self.copied: dict[int, tuple[str, Value]] = {}
        self.allocated: dict[int, tuple[str, Value]] = {}
        cold = [part for part in parts if part.symbol.startswith(f"{routine.symbol}.cold")]
        self.blocks = _blocks([part.instructions for part in (routine, *cold)])
        self.before: dict[int, State] = {}
        self.after: dict[int, State] = {}
        self.widens = False

    def unknown(self, *kind: object) -> Value:
        """Return the unknown of this kind: the same each time."""
        if kind not in self.numbers:
            self.numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        return Value(((self.numbers[kind], 1),))

    def read(self, total: Accesses) -> None:
        """Add the routine's accesses to the total."""
        state: State = {name: self.unknown("argument", name) for name, _ in _REGISTERS.values()}
        roots = {next(iter(self.blocks)): state | {"rsp": self.unknown("stack")}}
        self._follow(roots)
        while orphans := [at for at in self.blocks if at not in self.before]:
            # A jump table or a static branch leads to these blocks. A value is known there only if
            # all blocks that may precede them agree on it.
            heads = [at for at in orphans if not self.blocks[at].sources] or orphans
            tables = [at for at, block in self.blocks.items() if block.is_table]
            places = [self.after[at] for at in tables if at in self.after]
            for at in heads:
                roots[at] = self._joined(at, places or [*self.before.values()][1:] or [state])
            self._follow(roots)
        total.checks += len(self.checked)
        total.unchecked += self._unchecked()
        copies = sorted(self.copied.items())
        total.user_copies += [name for _, (name, value) in copies if self._is_kernels(value)]
        for _, (_, size) in sorted(self.allocated.items()):
            parts = [(bool(way.terms), _signed(way.constant)) for way in self._ways(size)]
            total.sizes.append(max(parts))

    def _follow(self, roots: dict[int, State]) -> None:
        """Follow all paths until no value changes any more."""
        order = self._order([*roots])
        for sweep in range(_MOST_SWEEPS):
            self.widens = sweep > _MOST_SWEEPS // 4
            changed = False
            for at in order:
                block = self.blocks[at]
                states = [self.after[source] for source in block.sources if source in self.after]
                states += [roots[at]] if at in roots else []
                if states and self.before.get(at) != (state := self._joined(at, states)):
                    changed = True
                    self.before[at], self.after[at] = state, dict(state)
                    for instruction in block.instructions:
                        self._execute(instruction, self.after[at])
            if not changed:
                return
        raise UserError("too_much_work", f"the values in {self.name}() keep changing")

    def _order(self, roots: Sequence[int]) -> list[int]:
        """Return the reachable blocks, each after its predecessors except in loops."""
        order: dict[int, None] = {}
        seen: set[int] = set()
        waiting = [(root, False) for root in roots]
        while waiting:
            at, done = waiting.pop()
            if done:
                order[at] = None
            elif at not in seen:
                seen.add(at)
                waiting += [(at, True), *((then, False) for then in self.blocks[at].following)]
        return [*reversed(order)]

    def _joined(self, at: int, states: Sequence[State]) -> State:
        """Return the state of a block where paths meet; values that differ become unknown."""
        if len(states) == 1:
            return states[0]
        result: State = {}
        alike: dict[object, tuple[Value, int]] = {}
        for key, value in states[0].items():
            if any(key not in state for state in states):
                continue
            every = [state[key] for state in states]
            joined = self.unknown("joined", at, key)
            values = set(every) - {joined}
            # Values that keep changing stay unknown, so that the iteration ends.
            stays = self.widens and self.before.get(at, {}).get(key) == joined
            if len(values) <= 1 and not stays:
                result[key] = next(iter(values), value)
                continue
            # Pointers into one object move together: the distance between them is known.
            shape = tuple((other.terms, other.constant - value.constant) for other in every)
            first, constant = alike.setdefault(
                key if self.widens else shape, (joined, value.constant)
            )
            result[key] = first.plus(Value((), value.constant - constant))
            if first == joined:
                self.inputs[joined] = values
        return result

    # --- instructions ---------------------------------------------------------------------------

    def _execute(self, instruction: Instruction, state: State) -> None:
        mnemonic, operands, at = instruction.mnemonic, instruction.operands, instruction.address
        for operand in operands * (not _NO_ACCESS.fullmatch(mnemonic)):
            if (address := self._address(instruction, operand, state)) is not None:
                self.reached[at] = (instruction, address)
        callee = instruction.callee
        if mnemonic == "call" or (callee and instruction.target not in self.blocks):
            self._call(at, callee, state)
        elif (match := _SPECIAL.fullmatch(mnemonic)) and not (match["product"] and operands[1:]):
            names = {_REGISTERS[operand][0] for operand in operands if operand in _REGISTERS}
            names |= {*_CLOBBERED[: _COUNTS.get(match.lastgroup or "", 0)]}
            state |= {name: self.unknown("changed", at, name) for name in names}
        # The stack pointer counts as constant: compilers use the stack below the frame pointer, or
        # above the stack pointer.
        elif operands and operands[-1] != "%rsp" and not _NO_RESULT.fullmatch(mnemonic):
            self._assign(instruction, state)

    def _call(self, at: int, callee: str, state: State) -> None:
        first, second = state["rdi"], state["rsi"]
        if match := CHECK.fullmatch(callee):
            size = match["size"] or match["bytes"] or ""
            known = int(size) if size.isdecimal() else 0 if second.terms else second.constant
            self.checked[at] = (first, known or 1 << 12)
        for patterns, passed in ((_COPIES, self.copied), (_SIZES, self.allocated)):
            for register, pattern in patterns.items():
                if pattern.fullmatch(callee):
                    passed[at] = (callee, state[register])
        state |= {name: self.unknown("result", at, name, callee) for name in _CLOBBERED}

    def _assign(self, instruction: Instruction, state: State) -> None:
        *sources, destination = instruction.operands
        mnemonic = instruction.mnemonic
        address = self._address(instruction, destination, state)
        width = _REGISTERS.get(sources[0], ("", 0))[1] if sources else 0
        name, bits = _REGISTERS.get(destination, ("", 64 if mnemonic.endswith("q") else width))
        value = self._result(instruction, state, bits)
        if name:
            state[name] = value
        elif address is not None and self._is_stack(address):
            state[address] = value

    def _result(self, instruction: Instruction, state: State, bits: int) -> Value:
        mnemonic, operands = instruction.mnemonic, instruction.operands
        values = [self._value(instruction, operand, state) for operand in operands]
        old, value = values[-1], values[0]
        result = self.unknown(mnemonic, instruction.address)
        if mnemonic == "lea":
            address = self._address(instruction, operands[0], state)
            result = address if address is not None and bits == 64 else result
        elif mnemonic.startswith("cmov") and bits == 64:
            result = self.unknown("joined", instruction.address, "cmov")
            self.inputs[result] = {old, value} - {result}
        elif mnemonic in {"mov", "movq", "movabs"} and (bits == 64 or not value.terms):
            result = value
        elif mnemonic == "shr" and bits == 64:
            self.shifted[result] = old
        elif mnemonic == "xor" and operands[0] == operands[-1]:
            result = Value()
        elif bits == 64 and mnemonic in {"add", "sub"}:
            result = old.plus(value, 1 if mnemonic == "add" else -1)
        elif bits == 64 and mnemonic == "shl" and not value.terms and value.constant < 64:
            result = Value().plus(old, 1 << value.constant)
        return result

    def _value(self, instruction: Instruction, operand: str, state: State) -> Value:
        if operand in _REGISTERS:
            return state[_REGISTERS[operand][0]]
        if match := _IMMEDIATE.fullmatch(operand):
            return self._number(instruction, match[1], last=True)
        address = self._address(instruction, operand, state)
        loaded = self.unknown("loaded", instruction.address)
        return state.get(address, loaded) if address is not None else loaded

    def _number(self, instruction: Instruction, digits: str, *, last: bool) -> Value:
        """Return a number of an instruction.

        0 may stand for the symbol of its first relocation; with `last`, of its last.
        """
        if digits != "0x0" or not instruction.relocations:
            return Value((), int(digits, 16) % _WORD)
        relocation = instruction.relocations[-1 if last else 0]
        return self.unknown("symbol", relocation.symbol).plus(Value((), relocation.addend % _WORD))

    def _address(self, instruction: Instruction, operand: str, state: State) -> Value | None:
        """Return the address of an operand in memory, or None: CPU-local data have none."""
        match = _MEMORY_OPERAND.fullmatch(operand)
        if match is None or match[1] in {"fs", "gs"}:
            return None
        address = self._number(instruction, match[2], last=False) if match[2] else Value()
        base, index, scale = [*match[3].split(","), "", "1"][:3]
        for register, factor in ((base, 1), (index, int(scale) if scale in {*"1248"} else 1)):
            if register in _REGISTERS:
                address = address.plus(state[_REGISTERS[register][0]], factor)
        return address

    # --- judgement ------------------------------------------------------------------------------

    def _unchecked(self) -> list[str]:
        ranges: dict[Terms, list[tuple[int, int]]] = defaultdict(list)
        for value, size in self.checked.values():
            ranges[value.terms].append((value.constant, size))
        left = []
        for _, (instruction, value) in sorted(self.reached.items()):
            # The bit's number adds to the address; the word that holds the bit is checked.
            bits = instruction.mnemonic in _BITS
            if self._pokes(instruction, value) or not (
                _covered(value, ranges)
                or (bits and any(set(value.terms) <= set(terms) for terms in ranges))
                or all(_covered(way, ranges) or self._is_own(way) for way in self._ways(value))
            ):
                left.append(f"{instruction.mnemonic} {','.join(instruction.operands)}")
        return left

    def _is_stack(self, address: Value) -> bool:
        return any(self.kinds[number][0] == "stack" for number, _ in address.terms)

    def _is_own(self, address: Value) -> bool:
        """Return whether this is the stack, a variable without an index, or a shadow byte."""
        shadow = self._shadowed(address) is not None
        plain = all(self.kinds[number][0] == "symbol" for number, _ in address.terms)
        return shadow or plain or self._is_stack(address)

    def _pokes(self, instruction: Instruction, address: Value) -> bool:
        """Return whether this writes the shadow of memory outside the function's stack."""
        shadowed = self._shadowed(address)
        return instruction.writes and shadowed is not None and not self._is_stack(shadowed)

    def _shadowed(self, address: Value) -> Value | None:
        """Return the address whose shadow byte this is, if it is one."""
        far = min(address.constant, _WORD - address.constant) >= 1 << 40
        shifted = (self.shifted.get(Value((part,))) for part in address.terms if far)
        return next(filter(None, shifted), None)

    def _is_kernels(self, pointer: Value) -> bool:
        """Return whether this is certainly an address of the kernel's own memory."""
        checked = {value.terms for value, _ in self.checked.values()}
        ways = [pointer, *self._ways(pointer)]
        bases = {part for way in ways for part in way.terms if part[1] == 1}
        kinds = [self.kinds[number] for number, _ in bases]
        made = any(kind[0] == "stack" or _ALLOCATION.fullmatch(str(kind[-1])) for kind in kinds)
        return made or not checked.isdisjoint({pointer.terms, *((part,) for part in bases)})

    def _ways(self, value: Value) -> list[Value]:
        """Return the possible values of a value: a joined one has the values of its paths."""
        ways, waiting, seen = [], [value], {value}
        while waiting:
            candidate = waiting.pop()
            joined = (Value((part,)) for part in candidate.terms if Value((part,)) in self.inputs)
            if (meet := next(joined, None)) is None or len(seen) > _MOST_WAYS:
                ways.append(candidate)
                continue
            new = {candidate.plus(meet, -1).plus(way) for way in self.inputs[meet]} - seen
            waiting += new
            seen |= new
        return ways or [value]


def _covered(value: Value, ranges: Mapping[Terms, Sequence[tuple[int, int]]]) -> bool:
    near = ranges.get(value.terms, ())
    return any((value.constant - start) % _WORD < size for start, size in near)


def _signed(constant: int) -> int:
    return constant - (_WORD if constant >= _WORD // 2 else 0)


def _blocks(parts: Sequence[Sequence[Instruction]]) -> dict[int, _Block]:
    """Return the blocks of a function's parts by address, linked with those that may follow."""
    targets = {instruction.target for part in parts for instruction in part if instruction.is_jump}
    blocks: dict[int, _Block] = {}
    followed: list[tuple[int, int | None]] = []
    for part in parts:
        block, entered = _Block(), True
        for instruction, then in zip(part, [*part[1:], None], strict=True):
            block.instructions.append(instruction)
            start = block.instructions[0].address
            met = then is None or then.address in targets
            # A WARN() goes on after its `ud2`; code after a BUG()'s is reached from elsewhere.
            falls = instruction.falls_through or (instruction.mnemonic == "ud2" and not met)
            if falls and not instruction.is_jump and not met:
                continue
            padding = all(
                _PADDING.fullmatch(instruction.mnemonic) for instruction in block.instructions
            )
            if entered or start in targets or not padding:
                blocks[start] = block
                followed.append((start, then.address if falls and then is not None else None))
                followed.append((start, instruction.target if instruction.is_jump else None))
            block, entered = _Block(), falls
    for start, following in followed:
        if following in blocks:
            blocks[start].following.append(following)
            blocks[following].sources.append(start)
    return blocks

"""Records at the entry of every function of a C file, on the lines that are there. Pure.

A record goes by `__trace_bprintk` (kernel/trace/trace_printk.c), which is what `trace_printk`
calls, into the ring buffer and nowhere else: process, CPU and time are the tracer's, the message
is `kgym:<file>:<function> <counter>`, and the address is the caller's. No header is needed, so
that it does not matter what a file includes. A record is a declaration: there may be others
behind it, which must not follow a statement.

Braces divide each reading of the file (`kgym.source.c_branches`) into its items. The syntax tree
of an item's head says whether it is a function, and which; what it does not say for sure is left
alone.
"""

import fnmatch
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, replace

import tree_sitter_c
from pydantic import Field
from tree_sitter import Language, Node, Parser

from kgym.api.steps import SkippedFunction, Strict
from kgym.errors import UserError
from kgym.source import c_branches

# Of what is inserted: part of the names of what is built with it.
VERSION = 1
# Bytes of a file; what is longer in the kernel are tables.
LIMIT = 2 << 20
# What to add to a config that comes to no CONFIG_TRACING, which has no prompt: a symbol that
# selects it (kernel/trace/Kconfig).
SYMBOLS = ("FTRACE", "ENABLE_DEFAULT_TRACERS")

# Prefix of the variables that a record adds to its function.
LOCALS = "kgym_"

_PRELUDE = (
    "int __trace_bprintk(unsigned long, const char *, ...);"
    " static unsigned int {counter} __attribute__((unused)); "
)
# As do_trace_printk() of include/linux/kernel.h. The section makes the kernel allocate its buffers.
_RECORD = (
    ' static const char *kgym_format __attribute__((used, section("__trace_printk_fmt")))'
    ' = "kgym:{path}:{name} %u\\n"; int kgym_entry __attribute__((unused)) = __trace_bprintk('
    "(unsigned long)__builtin_return_address(0), kgym_format,"
    " __atomic_fetch_add(&{counter}, 1, __ATOMIC_RELAXED));"
)


class UntracedFiles(Strict):
    """Files that get no records, as patterns of the shell, and why."""

    paths: list[str] = Field(min_length=1)
    reason: str


class Untraced(Strict):
    """`configs/untraced.toml`: what the tracer itself runs through, or that must not be traced."""

    files: list[UntracedFiles] = []

    def reason(self, path: str) -> str | None:
        """Return why the file gets no records; None if it does."""
        for one in self.files:
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in one.paths):
                return one.reason
        return None


@dataclass(frozen=True, slots=True)
class Instrumented:
    """A file with records in `functions`; both lists are in the order of the file."""

    content: bytes
    functions: tuple[str, ...]
    skipped: tuple[SkippedFunction, ...]


def instrument(source: bytes, path: str) -> Instrumented:
    """Return the C file with a record at the entry of each function.

    `path` is one that a BuildSpec takes. Lines stay as many, and what stands on which. Raises
    UserError `file_too_large` beyond LIMIT.
    """
    if len(source) > LIMIT:
        raise UserError("file_too_large", f"{path} has over {LIMIT >> 20} MiB")
    text = source.decode("latin-1")  # an offset is one of bytes
    file = c_branches.read(text)
    counter = "kgym_count_" + re.sub(r"\W", "_", path)
    record = _RECORD.replace("{path}", path).replace("{counter}", counter)
    parts = [text[: file.start]]
    functions: list[str] = []
    skipped: list[SkippedFunction] = []
    at, line = file.start, 1 + text.count("\n", 0, file.start)
    for one in _found(file):
        if skip := one.skip or ("no_place" if one.at < file.start else ""):
            where = line + text.count("\n", at, one.at) - text.count("\n", one.at, at)
            skipped.append(SkippedFunction(name=one.name, line=where, reason=skip))
            continue
        if not functions:
            parts.append(_PRELUDE.format(counter=counter))
        line += text.count("\n", at, one.at)
        parts += [text[at : one.at + 1], record.replace("{name}", one.name)]
        functions.append(one.name)
        at = one.at + 1
    content = "".join([*parts, text[at:]]).encode("latin-1")
    return Instrumented(content, tuple(functions), tuple(skipped))


def buffer_size(memory: int, cpus: int) -> int:
    """Return the bytes of ring buffer for each CPU of a guest with `memory` MiB.

    All have an eighth of the memory, at most 1 GiB: a record takes 32 bytes, so that a guest of
    1 GiB keeps the last four million.
    """
    return min(memory << 20 >> 3, 1 << 30) // cpus >> 12 << 12


# --- which functions ----------------------------------------------------------------------------

_C = Language(tree_sitter_c.language())
_NESTED = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
# What stands among the words of a declaration and is no C before the preprocessor
# (include/linux/compiler_attributes.h, compiler_types.h, init.h, …).
_ANNOTATION = re.compile(
    rf"""\b(?:
    (?: __attribute(?:__)? | __printf | __scanf | __aligned | __section | __noinstr_section
      | __(?:cond_)?(?:acquires?|releases?)(?:_shared)? | __must_hold(?:_shared)? | __alloc_size
      | __realloc_size | __assume_aligned | __malloc | __no_sanitize | __diagnose_as | __target
      | __counted_by
    )\s*{_NESTED}
  | (?: asmlinkage | notrace | noinstr | noinline\w* | nokprobe_inline | __always_inline
  | __inline(?:__)? | __init | __init_memblock | __init_or_module | __exit | __net_init
  | __net_exit | __meminit | __head | __ref | __sched | __lockfunc | __kprobes | __cpuidle
  | __irq_entry | __softirq_entry | __latent_entropy | __visible | __used | __weak | __cold
  | __hot | __pure | __attribute_const__ | __noreturn | __must_check | __maybe_unused
  | __always_unused | __deprecated | __flatten | __noclone | __no_\w+ | __nocfi | __noendbr
  | __naked | __malloc | __bpf_kfunc | __ficommon | __user | __iomem | __percpu | __rcu | __force
  | __nonstring | __ro_after_init | __read_mostly | __extension__ | __restrict
  | INDIRECT_CALLABLE_SCOPE )\b
    )""",
    re.VERBOSE,
)
# Reasons not to put a record into a function, and the words that give them.
_BARRED = {
    "noinstr": r"noinstr|__noinstr_section|__cpuidle",
    "notrace": r"notrace|NOTRACE_\w+|\w*no_(?:profile_)?instrument_function(?:__)?",
    "init": r"__init|__init_memblock|__init_or_module|__exit|__meminit|__head",
    "calling_convention": r"(?:__)?naked(?:__)?|(?:__)?no_caller_saved_registers(?:__)?",
    "section": r"__section|(?:__)?section(?:__)?(?=\s*\()",
}
_BAR = re.compile(rf"\b(?:{'|'.join(f'(?P<{one}>{words})' for one, words in _BARRED.items())})\b")
_PROPAGATED = {"noinstr", "notrace"}
_INLINE = re.compile(r"\b(?:inline|__inline(?:__)?|__always_inline|nokprobe_inline)\b")
# How functions are called that macros define, by their first argument.
_MACROS = {
    # include/linux/syscalls.h, include/linux/compat.h, arch/x86/include/asm/syscall_wrapper.h
    "sys_{}": r"SYSCALL(?:32|64)?_DEFINE\d",
    "compat_sys_{}": r"COMPAT_SYSCALL(?:32)?_DEFINE\d",
    # include/linux/filter.h; arch/x86/include/asm/idtentry.h, whose other macros are noinstr
    "{}": r"BPF_CALL_\d|DEFINE_IDTENTRY(?:_ERRORCODE|_SYSVEC|_SYSVEC_SIMPLE|_IRQ)?",
}
_MACRO = [(re.compile(rf"(?:{macro})"), name) for name, macro in _MACROS.items()]
_MARK = re.compile(r"[{};]")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_LETTERS = f"{string.ascii_letters}{string.digits}_"
_FIRST = re.compile(r"\(\s*([A-Za-z_]\w*)\s*[,)]")
_ACCESS_OR_CALL = re.compile(
    r"\b(?:(?:user_(?:read_|write_)?access|__uaccess)_(?:begin|end)\w*|stac\b|clac\b"
    r"|(?P<name>[A-Za-z_]\w*)\s*\()"
)
# EXPORT_SYMBOL(x), and other macros that no semicolon parts from what follows.
_LEADING = re.compile(rf"^\s*(?:(?:[A-Z][A-Z0-9_]+|module_\w+)\s*{_NESTED}\s*\n\s*)+")
_PARENTHESIS = re.compile(r"[()]")
# Of what stands before a parenthesis, if it is no function's.
_DATA = re.compile(r"=|\b(?:struct|union|enum)\s+\w+\s*$")
# Bytes of a head that is looked at; the kernel's longest have some hundred.
_HEAD = 16 << 10
_LOCAL_LABEL = re.compile(r"\s*__label__\b")


@dataclass(frozen=True, slots=True)
class _Function:
    """A function; `at` is where its brace opens, `skip` why it gets no record, if it gets none."""

    name: str
    at: int
    body: str
    inline: bool
    skip: str = ""


def _found(file: c_branches.File) -> list[_Function]:
    """Return the functions of all readings; one that these do not agree on gets no record."""
    found: dict[int, _Function] = {}
    for reading in file.readings():
        for one in _functions(reading):
            before = found.setdefault(one.at, one)
            if before.name != one.name:
                found[one.at] = replace(before, skip="depends_on_config")
            elif one.skip and not before.skip:
                found[one.at] = one
    return [found[at] for at in sorted(found)]


def _functions(reading: str) -> list[_Function]:
    bare = _ANNOTATION.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), reading)
    found: list[_Function] = []
    declared: dict[str, str] = {}
    for start, at, end in _items(bare):
        head, plain = bare[start:at].rstrip(), reading[start:at]
        bar = _BAR.search(plain)
        why = bar.lastgroup or "" if bar else ""
        before, group = _last_group(head)
        if reading[at] == ";":
            if why and (callee := _CALL.search(head)):
                declared[callee[1]] = why
        elif group and not _DATA.search(before):
            name, unclear = _named(before, group)
            if _LOCAL_LABEL.match(reading, at + 1):
                unclear = "local_labels"
            inline = _INLINE.search(plain) is not None
            found.append(_Function(name, at, bare[at:end], inline, why or unclear))
    found = [replace(one, skip=one.skip or declared.get(one.name, "")) for one in found]
    return _unreachable(found)


def _items(bare: str) -> Iterator[tuple[int, int, int]]:
    """Yield what stands outside of all braces: where its head begins and ends, where it ends.

    The head of a declaration ends with its semicolon, that of a definition with its brace.
    """
    depth = start = at = 0
    for match in _MARK.finditer(bare):
        mark = match[0]
        if mark == "{":
            if depth == 0:
                at = match.start()
            depth += 1
        elif depth == 0 or (mark == "}" and depth == 1):
            if mark != "}":
                yield start, match.start(), match.end()
            elif depth:
                yield start, at, match.end()
            depth = 0
            start = match.end()
        elif mark == "}":
            depth -= 1


def _last_group(head: str) -> tuple[str, str]:
    """Return the parenthesis that a head ends with, and what is before it; else two blanks."""
    depth = start = 0
    for match in _PARENTHESIS.finditer(head):
        if match[0] == "(":
            start = start if depth else match.start()
            depth += 1
        else:
            depth = max(0, depth - 1)
    return (head[:start], head[start:]) if depth == 0 and head.endswith(")") else ("", "")


def _named(before: str, group: str) -> tuple[str, str]:
    """Return the name of the function that has this head, and why that is not sure, if it is not.

    The tree is that of the head alone: what is odd in other functions does not touch it.
    """
    first, stripped = _FIRST.match(group), before.rstrip()
    word = stripped[len(stripped.rstrip(_LETTERS)) :]
    macro = next((name for macro, name in _MACRO if macro.fullmatch(word)), None)
    if macro and first:
        return macro.format(first[1]), ""
    # What other branches hold has become blanks, and can be long.
    definition = " ".join(f"{_LEADING.sub('', before)}{group}{{}}".split()).encode("latin-1")
    name = _declared(definition) if len(definition) <= _HEAD else ""
    if name and word in {name, ""}:
        return name, ""
    return f"{word}({first[1]})" if first and word.isupper() else word or "?", "not_understood"


def _declared(text: bytes) -> str:
    """Return the name of the function whose definition ends the text, if one does."""
    root = Parser(_C).parse(text).root_node
    definition = root.children[-1] if root.children else root
    node = definition.child_by_field_name("declarator")
    if definition.type != "function_definition" or not definition.child_by_field_name("body"):
        return ""
    while node is not None and node.type != "identifier":
        inner: Node | None = node.child_by_field_name("declarator")
        node = inner or next((one for one in node.named_children if "decl" in one.type), None)
    return (node.text or b"").decode("latin-1") if node is not None else ""


def _unreachable(functions: list[_Function]) -> list[_Function]:
    """Bar what becomes part of functions that are barred, or runs while user memory is open.

    objtool allows few calls between user_access_begin() and user_access_end().
    """
    found = {one.name: one for one in functions}
    todo = [(one, _CALL.findall(one.body)) for one in functions if one.skip in _PROPAGATED]
    todo += [
        (replace(one, skip="user_access"), _with_access(one.body))
        for one in functions
        if "_begin" in one.body or "stac" in one.body
    ]
    while todo:
        caller, calls = todo.pop()
        for name in calls:
            one = found.get(name)
            if one is None or one.skip or not (one.inline or caller.skip == "user_access"):
                continue
            why = "user_access" if caller.skip == "user_access" else "inlined"
            found[name] = replace(one, skip=why)
            todo.append((found[name], _CALL.findall(one.body)))
    return [replace(one, skip=found[one.name].skip or one.skip) for one in functions]


def _with_access(body: str) -> list[str]:
    """Return the names that are called while user memory is open."""
    called, is_open = [], False
    for match in _ACCESS_OR_CALL.finditer(body):
        if match["name"] is not None:
            called += [match["name"]] if is_open else []
        else:
            is_open = "begin" in match[0] or match[0] == "stac"
    return called

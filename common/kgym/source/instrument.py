"""Instrumentation: a trace record at the entry of every function of a C file. Pure.

A record calls `__trace_bprintk` (kernel/trace/trace_printk.c), as `trace_printk` does, and goes to
the ring buffer only. The tracer adds process, CPU and time; the message is
`kgym:<file>:<function> <counter>`; the address is the caller's.

Braces divide each reading of the file (`kgym.source.c_branches`) into items. The syntax tree of an
item's head decides whether it is a function, and which. Unclear items get no record.
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

# Version of the inserted code; part of the names of builds with it.
VERSION = 1
# Bytes of a file: longer files of the kernel are tables.
LIMIT = 2 << 20
# CONFIG_TRACING has no prompt. These symbols select it (kernel/trace/Kconfig).
SYMBOLS = ("FTRACE", "ENABLE_DEFAULT_TRACERS")

# Prefix of a record's variables.
LOCALS = "kgym_"

# A record is a declaration on the line of the function's brace: line numbers of reports stay the
# same, and the function's own declarations may follow without -Wdeclaration-after-statement. The
# prototype is our own, since a file may include no header that declares it.
_PRELUDE = (
    "int __trace_bprintk(unsigned long, const char *, ...);"
    " static unsigned int {counter} __attribute__((unused)); "
)
# Like do_trace_printk() of include/linux/kernel.h. A format in this section makes the kernel
# allocate the trace_printk buffers.
_RECORD = (
    ' static const char *kgym_format __attribute__((used, section("__trace_printk_fmt")))'
    ' = "kgym:{path}:{name} %u\\n"; int kgym_entry __attribute__((unused)) = __trace_bprintk('
    "(unsigned long)__builtin_return_address(0), kgym_format,"
    " __atomic_fetch_add(&{counter}, 1, __ATOMIC_RELAXED));"
)


class UntracedFiles(Strict):
    """Shell patterns of files that get no records, and the reason."""

    paths: list[str] = Field(min_length=1)
    reason: str


class Untraced(Strict):
    """`configs/untraced.toml`: files that the tracer itself runs, or that must not be traced."""

    files: list[UntracedFiles] = []

    def reason(self, path: str) -> str | None:
        """Return why a file gets no records; None if it gets them."""
        for untraced in self.files:
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in untraced.paths):
                return untraced.reason
        return None


@dataclass(frozen=True, slots=True)
class Instrumented:
    """A file with records in `functions`; both lists are in file order."""

    content: bytes
    functions: tuple[str, ...]
    skipped: tuple[SkippedFunction, ...]


def instrument(source: bytes, path: str) -> Instrumented:
    """Return the C file with a record at the entry of each function.

    `path` must be valid in a BuildSpec. Line numbers do not change. Raises UserError
    `file_too_large` beyond LIMIT.
    """
    if len(source) > LIMIT:
        raise UserError("file_too_large", f"{path} has over {LIMIT >> 20} MiB")
    text = source.decode("latin-1")  # so that offsets count bytes
    file = c_branches.read(text)
    counter = "kgym_count_" + re.sub(r"\W", "_", path)
    record = _RECORD.replace("{path}", path).replace("{counter}", counter)
    parts = [text[: file.start]]
    functions: list[str] = []
    skipped: list[SkippedFunction] = []
    at, line = file.start, 1 + text.count("\n", 0, file.start)
    for function in _agreed_functions(file):
        if skip := function.skip or ("no_place" if function.at < file.start else ""):
            where = line + text.count("\n", at, function.at) - text.count("\n", function.at, at)
            skipped.append(SkippedFunction(name=function.name, line=where, reason=skip))
            continue
        if not functions:
            parts.append(_PRELUDE.format(counter=counter))
        line += text.count("\n", at, function.at)
        parts += [text[at : function.at + 1], record.replace("{name}", function.name)]
        functions.append(function.name)
        at = function.at + 1
    content = "".join([*parts, text[at:]]).encode("latin-1")
    return Instrumented(content, tuple(functions), tuple(skipped))


def buffer_size(memory: int, cpus: int) -> int:
    """Return the ring buffer size per CPU, in bytes, for a guest with `memory` MiB."""
    # An eighth of the memory, at most 1 GiB: a record takes 32 bytes, so a guest with 1 GiB keeps
    # the last four million records.
    return min(memory << 20 >> 3, 1 << 30) // cpus >> 12 << 12


# --- which functions ----------------------------------------------------------------------------

_C = Language(tree_sitter_c.language())
_NESTED = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
# Annotations that do not parse as C before the preprocessor has run
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
# Reasons not to instrument a function, and the annotations that imply them.
_BARRED = {
    "noinstr": r"noinstr|__noinstr_section|__cpuidle",
    "notrace": r"notrace|NOTRACE_\w+|\w*no_(?:profile_)?instrument_function(?:__)?",
    "init": r"__init|__init_memblock|__init_or_module|__exit|__meminit|__head",
    "calling_convention": r"(?:__)?naked(?:__)?|(?:__)?no_caller_saved_registers(?:__)?",
    "section": r"__section|(?:__)?section(?:__)?(?=\s*\()",
}
_BAR = re.compile(rf"\b(?:{'|'.join(f'(?P<{why}>{words})' for why, words in _BARRED.items())})\b")
_PROPAGATED = {"noinstr", "notrace"}
_INLINE = re.compile(r"\b(?:inline|__inline(?:__)?|__always_inline|nokprobe_inline)\b")
# Names of functions that are defined by a macro, made from its first argument.
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
# EXPORT_SYMBOL(x) and other macros without a semicolon before the next definition.
_LEADING = re.compile(rf"^\s*(?:(?:[A-Z][A-Z0-9_]+|module_\w+)\s*{_NESTED}\s*\n\s*)+")
_PARENTHESIS = re.compile(r"[()]")
# Text before a parenthesis that belongs to data, not to a function.
_DATA = re.compile(r"=|\b(?:struct|union|enum)\s+\w+\s*$")
# Bytes of a head that is parsed: the kernel's longest have a few hundred.
_HEAD = 16 << 10
_LOCAL_LABEL = re.compile(r"\s*__label__\b")


@dataclass(frozen=True, slots=True)
class _Function:
    """A function: `at` is the offset of its brace, `skip` the reason if it gets no record."""

    name: str
    at: int
    body: str
    inline: bool
    skip: str = ""


def _agreed_functions(file: c_branches.File) -> list[_Function]:
    """Return the functions of all readings; readings that disagree on a name bar the function."""
    functions: dict[int, _Function] = {}
    for reading in file.readings():
        for function in _functions(reading):
            before = functions.setdefault(function.at, function)
            if before.name != function.name:
                functions[function.at] = replace(before, skip="depends_on_config")
            elif function.skip and not before.skip:
                functions[function.at] = function
    return [functions[at] for at in sorted(functions)]


def _functions(reading: str) -> list[_Function]:
    bare = _ANNOTATION.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), reading)
    functions: list[_Function] = []
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
            functions.append(_Function(name, at, bare[at:end], inline, why or unclear))
    functions = [replace(fn, skip=fn.skip or declared.get(fn.name, "")) for fn in functions]
    return _unreachable(functions)


def _items(bare: str) -> Iterator[tuple[int, int, int]]:
    """Yield each top-level item as three offsets: start, end of its head, end of the item.

    The head of a declaration ends at its semicolon, that of a definition at its brace.
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
    """Split a head before its final parenthesis; return two empty strings if it has none."""
    depth = start = 0
    for match in _PARENTHESIS.finditer(head):
        if match[0] == "(":
            start = start if depth else match.start()
            depth += 1
        else:
            depth = max(0, depth - 1)
    return (head[:start], head[start:]) if depth == 0 and head.endswith(")") else ("", "")


def _named(before: str, group: str) -> tuple[str, str]:
    """Return the name of the function with this head, and why it is uncertain, or ""."""
    # Only the head is parsed. Over 55,600 kernel functions this leaves one unclear; a syntax tree
    # of the whole file leaves 389, since one odd construct disturbs its neighbours.
    first, stripped = _FIRST.match(group), before.rstrip()
    word = stripped[len(stripped.rstrip(_LETTERS)) :]
    macro = next((name for macro, name in _MACRO if macro.fullmatch(word)), None)
    if macro and first:
        return macro.format(first[1]), ""
    # Omitted branches are blanks, which can be long.
    definition = " ".join(f"{_LEADING.sub('', before)}{group}{{}}".split()).encode("latin-1")
    name = _declared(definition) if len(definition) <= _HEAD else ""
    if name and word in {name, ""}:
        return name, ""
    return f"{word}({first[1]})" if first and word.isupper() else word or "?", "not_understood"


def _declared(text: bytes) -> str:
    """Return the name of the function definition that ends the text, or ""."""
    root = Parser(_C).parse(text).root_node
    definition = root.children[-1] if root.children else root
    node = definition.child_by_field_name("declarator")
    if definition.type != "function_definition" or not definition.child_by_field_name("body"):
        return ""
    while node is not None and node.type != "identifier":
        inner: Node | None = node.child_by_field_name("declarator")
        node = inner or next((child for child in node.named_children if "decl" in child.type), None)
    return (node.text or b"").decode("latin-1") if node is not None else ""


def _unreachable(functions: list[_Function]) -> list[_Function]:
    """Bar functions that are inlined into barred ones, or run while user memory is accessible."""
    # objtool rejects most calls between user_access_begin() and user_access_end().
    by_name = {fn.name: fn for fn in functions}
    todo = [(fn, _CALL.findall(fn.body)) for fn in functions if fn.skip in _PROPAGATED]
    todo += [
        (replace(fn, skip="user_access"), _with_access(fn.body))
        for fn in functions
        if "_begin" in fn.body or "stac" in fn.body
    ]
    while todo:
        caller, calls = todo.pop()
        for name in calls:
            callee = by_name.get(name)
            if callee is None or callee.skip or not (callee.inline or caller.skip == "user_access"):
                continue
            why = "user_access" if caller.skip == "user_access" else "inlined"
            by_name[name] = replace(callee, skip=why)
            todo.append((by_name[name], _CALL.findall(callee.body)))
    return [replace(fn, skip=by_name[fn.name].skip or fn.skip) for fn in functions]


def _with_access(body: str) -> list[str]:
    """Return the functions that a body calls while user memory is accessible."""
    called, is_open = [], False
    for match in _ACCESS_OR_CALL.finditer(body):
        if match["name"] is not None:
            called += [match["name"]] if is_open else []
        else:
            is_open = "begin" in match[0] or match[0] == "stac"
    return called

"""Prefixes that programs put before the kernel's lines; docs/reports.md lists them.

A prefix is removed only if it recurs in the log: a single line that begins like one may be the
kernel's own. The kernel's time stamp and caller stay, in the form of its console
(`console_lines.py`); a line that only the kernel can have written gets a stamp if it has none.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

_NESTED = 6
_RECURS = 2
_RECURS_UNLISTED = 3
# Bytes of a log in which prefixes are looked for: evenly spaced slices of a long one.
_SAMPLE, _SLICE = 1 << 18, 1 << 12
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[mK]")

# The kernel's own stamp and callers: kernel/printk/printk.c, print_prefix().
_STAMP = r"\[ *[0-9]+\.[0-9]+\]"
_CALLERS = r"(?:\[ *[CT][0-9]+\])+"
_LEVEL = r"<[0-9]{1,3}>"
_STAMPED = re.compile(rf"(?:{_CALLERS} ?)?{_STAMP}")
_ADDED = "[0.0] "

_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[A-Z]{2,3}T|[+-][0-9]{2}:?[0-9]{2}))?"
_ISO = rf"{_DAY}[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ]{_CLOCK}{_ZONE}"
_DATE = rf"{_DAY}{_MONTH} [ 0-9]?[0-9] {_CLOCK}{_ZONE}(?: [0-9]{{4}})?"
# in any language and order, with the bytes of UTF-8
_LOCAL = rf"(?:[^\s:\[\]<]{{1,16}} +){{1,3}}{_CLOCK}{_ZONE}(?: [0-9]{{4}})?"
_SHORT_DATE = rf"[0-9]{{2}}-[0-9]{{2}} {_CLOCK}"
_SECONDS = r"[0-9]{1,10}\.[0-9]{3,9}"
# The kernel's time stamp may be that of the journal (`-o short-monotonic`).
_LOGGED = rf"(?:{_LEVEL})?(?:1 )?(?:{_ISO}|{_LOCAL})"
_HOST = r"(?: [^\s:]{1,255})??(?: [a-z0-9]{2,8}\.[a-z]{3,7})? "


@dataclass(frozen=True, slots=True)
class Form:
    """A prefix, its name in docs/reports.md, and what replaces it (`{0}` is the first group).

    With `kernels`, only the kernel's lines have it. A form that `follows` counts if another of the
    same name recurs.
    """

    name: str
    text: str
    replacement: str = ""
    kernels: bool = False
    follows: bool = False
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        level = f"(?:{_LEVEL})?" if self.kernels else ""
        compiled = re.compile(f"^(?:{self.text}){level}", re.MULTILINE)
        object.__setattr__(self, "pattern", compiled)

    def removed(self, match: re.Match[str]) -> str:
        """Return what replaces the prefix."""
        if self.kernels and not _STAMPED.match(match.string, match.end()):
            return _ADDED
        return self.replacement.format(*match.groups())


# In order of precedence.
_FORMS = (
    Form("quote", r"(?:[>|] ?)*[>|](?: |$)"),
    Form(
        "syslog",
        rf"(?:(?:{_LOGGED}|\[? *{_SECONDS}\]?){_HOST})?kernel(?:\[[0-9]+\])?"
        # RFC 5424 has a process, a message's id, structured data, and perhaps a byte order mark
        r"(?:: ?| [^\s:]+ [^\s:]+ (?:-|\[[^\]\n]{0,200}\]) (?:\xef\xbb\xbf)?)",
        kernels=True,
    ),
    Form(
        "syslog",
        rf"{_LOGGED}{_HOST}[\w./@+-]{{1,64}}(?:\[[0-9]+\])?: .*|{_LEVEL}1 {_ISO} .*",
        follows=True,
    ),
    Form(
        "dmesg",
        rf"\[{_LOCAL}(?<= [0-9]{{4}})\] |\[ *(?:[^\s:\[\]<]{{1,16}} +){{2}}[0-9]{{2}}:[0-9]{{2}}\] "
        r"|\[ *\+[0-9]+[.,][0-9]+\] "
        # --time-format iso has a comma
        r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8},[0-9]{6}[+-][0-9]{2}:[0-9]{2} ",
        kernels=True,
    ),
    Form("facility", r"kern *:[a-z]+ *: ?", kernels=True),
    Form("facility", r"(?:user|daemon|auth|syslog|local[0-7]) *:[a-z]+ *: .*", follows=True),
    # /dev/kmsg (Documentation/ABI/testing/dev-kmsg), and netconsole's extended form
    Form(
        "kmsg",
        r"[0-9]{1,3},[0-9]+,[0-9]+,[^;\n]{1,99}?,caller=([CT][0-9]+)[^;\n]{0,99};",
        "[0.0][{0}] ",
    ),
    Form("kmsg", r"[0-9]{1,3},[0-9]+,[0-9]+,[^;\n]{1,200};", kernels=True),
    Form(
        "logcat",
        rf"(?:{_SHORT_DATE} +)?(?:(?:[a-z]\w* +)?0 +0 +[VDIWEF] |[VDIWEF]/)"
        r"(?i:kernel)? *(?:\( *[0-9]+\))?: ",
        kernels=True,
    ),
    # Android's log daemon takes a message's first word for a tag.
    Form(
        "logcat",
        rf"{_SHORT_DATE} +(?:[a-z]\w* +)?0 +0 +[VDIWEF] ([\w.-]+?) *: ",
        "[0.0] {0}: ",
        follows=True,
    ),
    Form("logcat", rf"{_SHORT_DATE} +(?:[a-z]\w* +)?[0-9]+ +[0-9]+ [VDIWEF] .*", follows=True),
    Form(
        "time",
        rf"(?:\[(?:{_ISO}|{_DATE}|{_CLOCK}|{_SHORT_DATE})\]|{_ISO}|{_DATE}|{_CLOCK}|{_SHORT_DATE})"
        rf"(?: ?[:|,-])?[ \t]|{_SECONDS}: |\[ *{_SECONDS}\] ?(?={_STAMP})",
    ),
    Form("level", rf"{_LEVEL}(?!\[)"),
    Form("caller", rf"({_CALLERS}) (?!(?:{_CALLERS} ?)?{_STAMP})", "[0.0]{0} "),
    # the callers of MediaTek's, Samsung's, Spreadtrum's and AVM's kernels
    Form(
        "vendor",
        rf"({_STAMP})(?:<[0-9]>)?[ .-]{{0,2}}\([0-9]+\)\[([0-9]+):[^\]\n]{{1,20}}\] ?",
        "{0}[T{1}] ",
    ),
    Form("vendor", rf"({_STAMP}) +\[[0-9]+:[^:\]\n]{{1,20}}: *([0-9]+)\] ?", "{0}[T{1}] "),
    Form("vendor", rf"({_STAMP}) c[0-9]+ +([0-9]+) ", "{0}[T{1}] "),
    Form("vendor", rf"({_STAMP})\[([0-9]+)\] ?", "{0}[C{1}] "),
)
NAMES = tuple(dict.fromkeys(form.name for form in _FORMS))
_UNLISTED = re.compile(r"^([^\n\[]{1,120}?)(?=\[ *[0-9]+\.[0-9]{6}\])", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The recurring prefixes of one log, the outermost first."""

    forms: tuple[Form, ...] = ()

    @classmethod
    def of(cls, log: bytes) -> "Prefixes":
        """Find the recurring prefixes."""
        sample = _COLOUR.sub("", _sample(log))
        forms: list[Form] = []
        for _ in range(_NESTED):
            before = len(forms)
            for form in (*_FORMS, *_unlisted(sample)):
                removed, count = form.pattern.subn(form.removed, sample)
                first = form.name not in {known.name for known in forms}
                if count >= _RECURS if not form.follows else not first and form not in forms:
                    sample = removed
                    forms.append(form)
            if len(forms) == before:
                break
        return cls(tuple(forms))

    def without(self, line: str) -> str:
        """Return the line without its prefixes; empty for the line of another program."""
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        for form in self.forms:
            if match := form.pattern.match(line):
                line = form.removed(match) + line[match.end() :]
        return line


NO_PREFIXES = Prefixes()


def _sample(log: bytes) -> str:
    if len(log) <= _SAMPLE:
        return log.decode("latin-1")
    starts = range(0, len(log), len(log) * _SLICE // _SAMPLE)
    # without the cut lines at a slice's ends
    slices = (log[at : at + _SLICE].partition(b"\n")[2].rpartition(b"\n")[0] for at in starts)
    return b"\n".join(slices).decode("latin-1")


def _unlisted(sample: str) -> list[Form]:
    """Return what else recurs before the kernel's time stamps, whatever words it consists of."""
    shapes = Counter(map(_shape, _UNLISTED.findall(sample)))
    return [Form("other", shape) for shape, n in shapes.most_common(5) if n >= _RECURS_UNLISTED]


def _shape(before: str) -> str:
    """Return a pattern of texts with other words and numbers, and as many blanks or more."""
    return re.sub(r"\w+", r"\\w+", re.sub(r"(?:\\ )+", " +", re.escape(before)))

"""Syzkaller's programs: the options in their header, and the command line for them. Pure.

A reproducer of syzkaller's dashboard is a program in its text form below
comments, one of which holds the options that the crash was found with. Over the
years that was `#{Threaded:true Collide:true Repeat:true Procs:8 Sandbox:none …}`
with growing sets of fields, then JSON. Sources: syzkaller, pkg/csource/options.go
(`Options`, `DeserializeOptions`), pkg/instance/instance.go (`ExecprogCmd`),
tools/syz-execprog/execprog.go, pkg/ipc/ipcconfig.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

SANDBOXES = ("none", "setuid", "namespace", "android", "android_untrusted_app")
MOST_PROCS = 128
# Bytes of output that are searched: the program is printed first.
_MOST = 1 << 20

# Characters of a line that are searched: a guest may print anything, and searches must stay fast.
_LINE = 300
_CALL = re.compile(r"(?:r[0-9]+ = )?([a-z_][\w$]*)\(")
_EXECUTING = re.compile(rb"(?m)^(?:[0-9/]+ [0-9:]+ )?executing program ?[0-9]*:\s*$")
_RESULT = re.compile(r"CALL ([0-9]{1,4}): .*?errno ([0-9]{1,4})((?: [a-z]+)*)\s*$")
_FEATURE = re.compile(
    r"(?m)^(?:[0-9/]+ [0-9:]+ )?([A-Za-z0-9][\w .-]{22,30}): (?!enabled$)(.{1,200})$"
)
_WELL = "errno 0"
_IDLE = "RESULT: no calls executed"
_HEADER = re.compile(r"^#\s*(\{.*\})\s*$")
_LEGACY = re.compile(r"(\w+):([^\s{}]*)")
_FLAG = re.compile(r"^\s+-(\w+)", re.MULTILINE)
_ENABLED = re.compile(r"^\s+(\w+) - ", re.MULTILINE)
_PROPERTIES = re.compile(r"\) \((?:async|rerun|remote)[^()]*\)$")
_INTEGER = re.compile(r"-?[0-9]{1,9}")
# Field names of both forms, in lower case and without `_`.
_FLAGS = ("threaded", "collide", "repeat", "fault")
_NUMBERS = {
    "procs": "procs",
    "repeattimes": "repeat_times",
    "faultcall": "fault_call",
    "faultnth": "fault_nth",
    "sandboxarg": "sandbox_arg",
    "slowdown": "slowdown",
}
# Features that an executor sets up, as `-enable` names them, by every spelling in lower case and
# letters and digits alone: in headers (Options), and in what syz-execprog prints about features
# that the kernel lacks (pkg/host/features.go, pkg/flatrpc). The headers' tmpdir, segv and kcsan are
# not among the names of `-enable`.
_FEATURES = {
    **dict.fromkeys(("tun", "netinjection", "netpacketinjection"), "tun"),
    **dict.fromkeys(("netdev", "netdevices", "netdevicesetup"), "net_dev"),
    **dict.fromkeys(("netreset", "resetnet"), "net_reset"),
    "cgroups": "cgroups",
    "binfmtmisc": "binfmt_misc",
    "closefds": "close_fds",
    **dict.fromkeys(("devlinkpci", "devlinkpcisetup"), "devlink_pci"),
    **dict.fromkeys(("nicvf", "nicvfsetup"), "nic_vf"),
    **dict.fromkeys(("usb", "usbemulation"), "usb"),
    **dict.fromkeys(("vhci", "vhciinjection", "hcipacketinjection"), "vhci"),
    **dict.fromkeys(("wifi", "wifiemulation", "wifideviceemulation"), "wifi"),
    **dict.fromkeys(("ieee802154", "802154emulation", "lrwpanemulation"), "ieee802154"),
    "sysctl": "sysctl",
    **dict.fromkeys(("swap", "swapfile"), "swap"),
}
_NEEDED = _FEATURES | dict.fromkeys(("fault", "faultinjection"), "fault")


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a program.

    The defaults are syzkaller's own for a program that comes without options
    (`DefaultOpts`), with as many processes as syzbot's machines run. A field that is
    missing in a header is off. `features` are names of `-enable`; None, without a header,
    stands for all that the kernel has.
    """

    threaded: bool = True
    collide: bool = True
    repeat: bool = True
    repeat_times: int = 0
    procs: int = 6
    sandbox: str = "none"
    sandbox_arg: int = 0
    fault: bool = False
    fault_call: int = 0
    fault_nth: int = 0
    slowdown: int = 1
    features: tuple[str, ...] | None = None


def options(text: str) -> Options:
    """Return the options in the program's header; raise ValueError if they are invalid."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if match := _HEADER.match(line):
            return _options(_fields(match[1]))
    return Options()


def check(text: str) -> None:
    """Raise ValueError if this does not have the form of a syzkaller program."""
    options(text)
    if not _calls(text):
        raise ValueError("the program has no call: every line is a comment or empty")


def flags(usage: str) -> frozenset[str]:
    """Return the flags in syz-execprog's `-help`, and as `enable=NAME` the features it knows."""
    listed = usage.partition("features for -enable")[2]
    return frozenset(_FLAG.findall(usage)) | {f"enable={name}" for name in _ENABLED.findall(listed)}


def unknown(wanted: Options, known: Collection[str]) -> list[str]:
    """Return the features that this syz-execprog does not know.

    Versions until 2019 have no flag `-enable`: they set up all features that they know, and list
    none.
    """
    features = wanted.features if wanted.features and "enable" in known else ()
    return [name for name in features if f"enable={name}" not in known]


def arguments(wanted: Options, known: Collection[str]) -> list[str]:
    """Return syz-execprog's flags for the options, as far as they are `known`.

    The caller adds `-executor` and the program's file. Syzkaller has added
    and removed flags over the years: `-collide` does nothing since 2021,
    `-fault_call` was removed (see `program`), `-sandbox_arg` and `-slowdown` were added.
    """
    values: dict[str, object] = {
        "arch": "amd64",
        "sandbox": wanted.sandbox,
        "procs": wanted.procs,
        "repeat": (wanted.repeat_times if wanted.repeat else 1),
        "threaded": str(wanted.threaded).lower(),
        "collide": str(wanted.collide and wanted.threaded).lower(),
        "cover": "0",
    }
    if wanted.fault:
        values |= {"fault_call": wanted.fault_call, "fault_nth": wanted.fault_nth}
    if wanted.sandbox_arg:
        values["sandbox_arg"] = wanted.sandbox_arg
    if wanted.slowdown > 1:
        values["slowdown"] = wanted.slowdown
    if wanted.features is not None:
        values["enable"] = ",".join(name for name in wanted.features if f"enable={name}" in known)
    return [f"-{name}={value}" for name, value in values.items() if name in known]


def first_run(wanted: Options, known: Collection[str]) -> list[str]:
    """Return the flags of a first run, which prints what it executes (see `Executed`)."""
    once = arguments(replace(wanted, repeat=False, procs=1), known)
    return [*once, *(flag for flag in ("-output=true", "-vv=1") if flag[1:].split("=")[0] in known)]


@dataclass(frozen=True, slots=True)
class Executed:
    """The executed calls and their last results, as printed by syz-execprog."""

    calls: tuple[str, ...] = ()
    results: Mapping[int, str] = field(default_factory=dict)
    """Results by number of the call: `errno 22`, `errno 0 blocked`."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Why features could not be set up on this kernel, by syz-execprog's words for them."""
    idle: bool = False
    """Whether the executor reported that it executed no call."""

    @classmethod
    def read(cls, output: bytes) -> "Executed":
        """Parse the output of the first run, which may be cut off."""
        if (begin := _EXECUTING.search(output)) is None:
            return cls()
        lines = output[begin.end() : begin.end() + _MOST].decode(errors="replace").splitlines()
        names = []
        for line in lines:
            if match := _CALL.match(line):
                names.append(match[1])
            elif line.strip() and names:
                break
        came = filter(None, (_RESULT.search(line[:_LINE]) for line in lines))
        results = {int(match[1]): f"errno {match[2]}{match[3]}" for match in came}
        features = _FEATURE.findall(output[: begin.start()].decode(errors="replace"))
        lacking = {name.strip(): why for name, why in features}
        return cls(
            tuple(names), results, lacking, not results and any(_IDLE in line for line in lines)
        )

    def summary(self) -> str:
        """Return the calls' results, and the features that the kernel lacks, as text."""
        failed = [
            f"{name} {self.results[number]}"
            for number, name in enumerate(self.calls)
            if self.results.get(number, _WELL) != _WELL
        ]
        words = [f"{len(self.results)} of {len(self.calls)} calls came back at first"]
        words += [f"not well: {', '.join(failed)}"] if failed else []
        words += [f"the kernel lacks: {_listed(self.lacking)}"] if self.lacking else []
        return "; ".join(words)

    def lacks(self, text: str) -> str | None:
        """Return which part of the program was not executed; None if all of it was.

        Syzkaller silently leaves out lines that it cannot parse, such as calls that its commit does
        not know.
        """
        if not self.calls:
            return "syz-execprog printed no executed program"
        if self.idle:
            return "the executor executed no call"
        left = Counter(call_names(text)) - Counter(self.calls)
        if left:
            names = ", ".join(sorted(left))
            return f"this syzkaller left out {left.total()} of the program's calls: {names}"
        wanted = options(text)
        needed = {*(wanted.features or ()), "fault" if wanted.fault or "fail_nth:" in text else ""}
        missing = {
            name: why
            for name, why in self.lacking.items()
            if _NEEDED.get(re.sub(r"[^a-z0-9]", "", name.lower())) in needed
        }
        return f"the program needs what is not there: {_listed(missing)}" if missing else None


def _listed(lacking: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({why})" for name, why in lacking.items())


def call_names(text: str) -> list[str]:
    """Return the names of the program's calls, as `ioctl$KVM_RUN`, in order."""
    lines = text.splitlines()
    matches = (_CALL.match(lines[number]) for number in _calls(text))
    return [match[1] if match else "?" for match in matches]


def program(text: str, wanted: Options, known: Collection[str]) -> str:
    """Return the program in the form that binaries with the flags `known` parse.

    Without the flag `-fault_call`, a fault is a property of the call, counted
    from 1: `call(…) (fail_nth: 3)` (syzkaller, prog/parse.go and prog/prog.go).
    """
    lines = text.splitlines()
    if wanted.fault and "fault_call" not in known:
        calls = _calls(text)
        line = lines[calls[wanted.fault_call]].rstrip() if wanted.fault_call < len(calls) else ""
        if line and "fail_nth:" not in line:
            others = f"{line[:-1]}, " if _PROPERTIES.search(line) else f"{line} ("
            lines[calls[wanted.fault_call]] = f"{others}fail_nth: {wanted.fault_nth + 1})"
    return "\n".join(lines) + "\n"


def _calls(text: str) -> list[int]:
    lines = enumerate(text.splitlines())
    return [number for number, line in lines if line.strip() and not line.startswith("#")]


def _fields(header: str) -> dict[str, object]:
    """Return the header's fields, by their names in lower case and without `_`."""
    try:
        values = json.loads(header)
    except (ValueError, RecursionError):
        values = {name: _value(word) for name, word in _LEGACY.findall(header)}
        if not values:
            raise ValueError(f"cannot read the options {header[:200]}") from None
    return {name.lower().replace("_", ""): value for name, value in values.items()}


def _value(word: str) -> object:
    if word in {"true", "false"}:
        return word == "true"
    return int(word) if _INTEGER.fullmatch(word) else word


def _options(fields: dict[str, object]) -> Options:
    values: dict[str, object] = {name: fields.get(name, False) for name in _FLAGS}
    values |= {ours: fields[name] for name, ours in _NUMBERS.items() if name in fields}
    # Before headers had it, close_fds() was always called.
    enabled: dict[str, object] = {"closefds": True}
    enabled |= {name.removeprefix("enable"): on for name, on in fields.items()}
    enabled = {name: on for name, on in enabled.items() if name in _FEATURES}
    for name, value in (values | enabled).items():
        kind = int if name in values and name not in _FLAGS else bool
        if type(value) is not kind:
            raise ValueError(f"the option {name} is {value!r}, not of type {kind.__name__}")
    sandbox = fields.get("sandbox") or "none"  # the executor accepts no empty name
    if sandbox not in SANDBOXES:
        raise ValueError(f"the option sandbox is {sandbox!r}; there are: {', '.join(SANDBOXES)}")
    # Old headers leave out a number of processes of 1.
    made = Options(**{"procs": 1, **values, "sandbox": sandbox})  # type: ignore[arg-type]
    if not 1 <= made.procs <= MOST_PROCS:
        raise ValueError(f"the option procs is {made.procs}; it must be 1 to {MOST_PROCS}")
    if made.repeat_times < 0 or made.fault_nth < 0:
        raise ValueError("an option that counts is negative")
    features = tuple(sorted({_FEATURES[name] for name, on in enabled.items() if on}))
    return replace(made, fault=made.fault and made.fault_call >= 0, features=features)

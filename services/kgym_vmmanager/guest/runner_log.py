"""Parser of the output of the guest's runner (guest/inside/run.c). Pure."""

from collections import Counter
from dataclasses import dataclass, field

from kgym.bugs.run_ends import End

LINE_LIMIT = 256
_LARGEST = {"exit": 255, "signal": 127}
_LARGEST_ERROR = 4095


@dataclass(slots=True)
class RunnerLog:
    """The state of the runner, from its lines so far.

    Of the `runs` started, `quick` failed within a second. `failed` is the errno of a program that
    cannot be executed, `stuck` the number of processes that cannot be killed. `last_end` describes
    the end of the last run, `ends` counts all ends. `lines` grows with every sign of life.
    """

    # A hostile program can print lines in the runner's place: all numbers are bounded, and none of
    # these fields alone makes a verdict.

    runs: int = 0
    quick: int = 0
    lines: int = 0
    over: bool = False
    failed: int | None = None
    stuck: int = 0
    last_end: str = ""
    ends: Counter[End] = field(default_factory=Counter)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Add the next output, cut anywhere; malformed lines are ignored."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LINE_LIMIT:]
        for line in lines:
            if self._take(line.decode("ascii", "replace").split()):
                self.lines += 1

    def _take(self, words: list[str]) -> bool:
        match words:
            case [("tick" | "over") as word, *numbers] if _are_numbers(numbers, 2):
                self.runs, self.quick = int(numbers[0]), int(numbers[1])
                self.over = self.over or word == "over"
            case ["end", run, how, value, ms] if _is_end(how, value, [run, ms]):
                self.runs = max(self.runs, int(run))
                self.ends[how, int(value)] += 1
                what = "exit status" if how == "exit" else "signal"
                self.last_end = f"{what} {value} after {int(ms) / 1000:g} s"
            case ["ends", how, value, count] if _is_end(how, value, [count]):
                self.ends[how, int(value)] = max(self.ends[how, int(value)], int(count))
            case ["failed", number] if _are_numbers([number], 1) and int(number) <= _LARGEST_ERROR:
                self.failed = int(number)
            case ["stuck", count] if _are_numbers([count], 1):
                self.stuck = int(count)
            case _:
                return False
        return True


def _is_end(how: str, value: str, numbers: list[str]) -> bool:
    if how not in _LARGEST or not _are_numbers([value, *numbers], 1 + len(numbers)):
        return False
    return int(value) <= _LARGEST[how]


def _are_numbers(words: list[str], count: int) -> bool:
    return len(words) == count and all(
        word.isascii() and word.isdigit() and len(word) < 13 for word in words
    )

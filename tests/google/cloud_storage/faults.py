"""Faults that the server shows on purpose: each the next times that a request fits."""

import re
import threading
from dataclasses import dataclass
from typing import Literal

Kind = Literal["status", "reset", "lost_answer", "cut_upload", "cut_download", "damage"]


@dataclass(slots=True)
class Fault:
    """What goes wrong with requests whose method and target the pattern finds."""

    pattern: re.Pattern[str]
    kind: Kind
    number: int = 0
    """The status, or a number of bytes: see `Faults.add`."""
    times: int = 1


class Faults:
    """Those to come."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, pattern: str, kind: Kind, number: int = 0, times: int = 1) -> None:
        """Let the next requests that fit ("PUT /upload") go wrong.

        status        answered with this status, and not done
        reset         the connection is reset, and nothing done
        lost_answer   done, but the connection is reset instead of the answer
        cut_upload    so many bytes of the body come through, then the connection is reset
        cut_download  so many bytes of the answer's body, likewise
        damage        this byte of the answer's body is another
        """
        with self._lock:
            self._faults.append(Fault(re.compile(pattern), kind, number, times))

    def take(self, request: str, *kinds: Kind) -> Fault | None:
        """Return the first of these kinds that the request fits, and count it."""
        with self._lock:
            for fault in self._faults:
                if fault.kind in kinds and fault.times > 0 and fault.pattern.search(request):
                    fault.times -= 1
                    return fault
        return None

    def clear(self) -> None:
        """Let nothing more go wrong."""
        with self._lock:
            self._faults.clear()

    @property
    def left(self) -> int:
        """How many have not happened yet."""
        with self._lock:
            return sum(fault.times for fault in self._faults)

"""What a look at a kernel's source takes, from request to answer, with the archive open.

read    a file, whole or 100 lines of it
search  an expression: words of several files, of very many, with a glob, without a whole word
symbol  a name: called once, a dozen times, everywhere

Each look is another one, so that nothing is answered from what the one before left.
"""

import random
import statistics
import sys
from collections.abc import Callable
from time import monotonic

from kgym.api.source import FileLook, FolderLook, SearchLook, SymbolLook
from kgym.api.states import State
from kgym.bugs import bundle
from kgym.client import Client
from kgym.configs import data_folder
from tests.alone import alone
from tests.figures import parser, show

BUG = "watch-queue-filter"
MOST_MS = 100.0
SEED = 8
FOLDERS = ("kernel", "mm", "fs", "net/core", "net/ipv4", "security/keys", "io_uring", "block")


def p95(times: list[float]) -> float:
    """Return the 95th percentile, in milliseconds."""
    return round(1000 * statistics.quantiles(times, n=20)[-1], 1)


def timed(looks: list[Callable[[], object]]) -> list[float]:
    """Return how long each look took."""
    times = []
    for look in looks:
        begin = monotonic()
        look()
        times.append(monotonic() - begin)
    return times


class Looks:
    """What agents ask, of names that this kernel has."""

    def __init__(self, client: Client, job: int, number: int) -> None:
        self._client, self._job, self._number = client, job, number
        self._chance = random.Random(SEED)
        self.files = [
            f"{folder}/{entry.name}"
            for folder in FOLDERS
            for entry in client.list_source(job, FolderLook(path=folder)).entries
            if entry.name.endswith((".c", ".h"))
        ]
        self.names = sorted(set(self._names()))

    def _names(self) -> list[str]:
        wanted = [
            SearchLook(pattern=r"^(static )?int \w+\(", glob=f"{folder}/*.c", limit=200)
            for folder in FOLDERS
        ]
        results = [self._client.search_source(self._job, look) for look in wanted]
        lines = [match.text for result in results for match in result.matches]
        return [line.partition("(")[0].split()[-1] for line in lines]

    def _some(self, of: list[str]) -> list[str]:
        return [self._chance.choice(of) for _ in range(self._number)]

    def reads(self) -> list[Callable[[], object]]:
        """Return looks at files, every other one at some lines."""
        wanted = [
            FileLook(path=path, first=1 + 100 * (number % 2), last=200 if number % 2 else None)
            for number, path in enumerate(self._some(self.files))
        ]
        return [lambda look=look: self._client.read_source(self._job, look) for look in wanted]

    def searches(self) -> list[Callable[[], object]]:
        """Return searches."""
        patterns = [
            lambda name: SearchLook(pattern=rf"\b{name}\("),
            lambda name: SearchLook(pattern=f"{name}|{name}_locked"),
            lambda name: SearchLook(pattern=name[1:-1], ignore_case=True),
            lambda name: SearchLook(pattern=rf"return {name}", glob="*.[ch]"),
            lambda _: SearchLook(pattern=r"kfree\(\w+->\w+\)", glob="mm/**"),
            lambda _: SearchLook(pattern="spin_lock"),
        ]
        wanted = [patterns[number % 6](name) for number, name in enumerate(self._some(self.names))]
        return [lambda look=look: self._client.search_source(self._job, look) for look in wanted]

    def symbols(self) -> list[Callable[[], object]]:
        """Return names to look up, every tenth one of those that are everywhere."""
        everywhere = ["kfree", "mutex_lock", "printk", "list_head", "current"]
        names = self._some(self.names)
        names[::10] = [everywhere[at % 5] for at in range(len(names[::10]))]
        wanted = [SymbolLook(name=name) for name in names]
        return [lambda look=look: self._client.find_symbol(self._job, look) for look in wanted]


def main() -> int:
    """Measure and print; fail if a look takes longer than it may."""
    words = parser(__doc__)
    words.add_argument("--number", type=int, default=200, help="looks of each kind")
    options = words.parse_args()
    with alone(data_folder()) as client:
        begin = monotonic()
        job = client.wait(client.submit(bundle.load(BUG).source()).id)
        if job.state is not State.SUCCEEDED:
            raise SystemExit(f"bench: {job.steps[0].failure}")
        ready = monotonic() - begin
        client.list_source(job.id, FolderLook())
        looks = Looks(client, job.id, options.number)
        kinds = {"read": looks.reads(), "search": looks.searches(), "symbol": looks.symbols()}
        times = {kind: timed(calls) for kind, calls in kinds.items()}
    figures: dict[str, object] = {f"{kind}_p95_ms": p95(took) for kind, took in times.items()}
    figures |= {
        f"{kind}_median_ms": round(1000 * statistics.median(took), 1)
        for kind, took in times.items()
    }
    figures |= {"ready_s": round(ready, 1), "looks": options.number, "seed": SEED}
    show(figures, options)
    return int(any(p95(took) > MOST_MS for took in times.values()))


if __name__ == "__main__":
    sys.exit(main())

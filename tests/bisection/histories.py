"""Histories for tests: a main line with branches that are merged."""

from random import Random

from kgym.bisection.history import Commit, History


def history(seed: int, size: int) -> History:
    """Return a history of so many commits."""
    rng = Random(seed)
    parents: list[tuple[int, ...]] = [()]
    main = 0
    while len(parents) < size:
        tip = rng.randrange(max(0, main - 20), main + 1)
        length = rng.randrange(1, 8)
        if rng.random() < 0.7 or len(parents) + length + 1 > size:
            parents.append((main,))
        else:
            for _ in range(length):
                parents.append((tip,))
                tip = len(parents) - 1
            parents.append((main, tip))
        main = len(parents) - 1
    return History([Commit(f"{number:040x}", before) for number, before in enumerate(parents)])

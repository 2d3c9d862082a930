"""How well a judge agrees with people who have looked at the same patches. Pure."""

from collections.abc import Iterable

from pydantic import Field

from kgym.api.steps import Strict


class Agreement(Strict):
    """Counts, and what follows of them; the people's word counts as true (Live-kBench Table 10)."""

    true_positive: int = Field(ge=0, description="both say that the patch is equivalent")
    true_negative: int = Field(ge=0)
    false_positive: int = Field(ge=0, description="the judge alone says so")
    false_negative: int = Field(ge=0)

    @classmethod
    def of(cls, pairs: Iterable[tuple[bool, bool]]) -> "Agreement":
        """Count pairs of the judge's word and the people's."""
        said = list(pairs)
        return cls(
            true_positive=said.count((True, True)),
            true_negative=said.count((False, False)),
            false_positive=said.count((True, False)),
            false_negative=said.count((False, True)),
        )

    @property
    def accuracy(self) -> float | None:
        """Share of patches on which both agree; None without any."""
        right = self.true_positive + self.true_negative
        return _share(right, right + self.false_positive + self.false_negative)

    @property
    def precision(self) -> float | None:
        """Of those that the judge calls equivalent, the share that are."""
        return _share(self.true_positive, self.true_positive + self.false_positive)

    @property
    def recall(self) -> float | None:
        """Of those that are equivalent, the share that the judge calls so."""
        return _share(self.true_positive, self.true_positive + self.false_negative)

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall."""
        wrong = self.false_positive + self.false_negative
        return _share(2 * self.true_positive, 2 * self.true_positive + wrong)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

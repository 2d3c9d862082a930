"""The outcome of a job or a patch: the word that all lists, pages and answers show."""

from enum import StrEnum

from kgym.api.states import State


class Outcome(StrEnum):
    """The outcome of a job, or of a patch on a bug."""

    WAITING = "waiting"
    RUNNING = "running"
    ABORTED = "aborted"
    RESOLVED = "resolved"
    NOT_RESOLVED = "not_resolved"
    """Its kernel crashes, or there is a blocking finding."""
    NOT_BUILT = "not_built"
    """The config leaves out all files that the patch changes: the kernel stays the same."""
    DOES_NOT_COMPILE = "does_not_compile"
    DOES_NOT_APPLY = "does_not_apply"
    REFUSED = "refused"
    """It is not a patch, or changes nothing; or the job cannot work as it was submitted."""
    INCONCLUSIVE = "inconclusive"
    """There is no answer."""
    COMPILES = "compiles"
    """All patches of a check compile."""
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    """The bug did not show, so that a patch could not be tried either."""
    CALIBRATED = "calibrated"
    TRACED = "traced"
    BUILT = "built"

    @property
    def words(self) -> str:
        """The outcome for people, such as `not resolved`."""
        return _WORDS.get(self, self.replace("_", " "))

    def sentence(self, reason: str | None) -> str:
        """Return the outcome with its reason, such as `Not resolved: the kernel crashes`."""
        words = self.words.capitalize()
        return f"{words}: {reason}" if reason else words


_WORDS = {Outcome.NOT_BUILT: "not compiled", Outcome.INCONCLUSIVE: "no answer"}
# Outcomes of unfinished jobs, by state.
UNDER_WAY = {
    State.PENDING: Outcome.WAITING,
    State.QUEUED: Outcome.WAITING,
    State.RUNNING: Outcome.RUNNING,
}

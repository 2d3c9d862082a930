"""The smoke test: whether a kernel still does what programs need of it, besides the bug.

guest/smoke.c says what is tried, one line for each: `ok NAME`, `skip NAME WHY`
(the kernel was built without it) or `fail NAME WHY`, and `done` at the end.
"""

import time
from collections.abc import Awaitable, Callable, Iterator

from kgym.ends import End
from kgym.steps import Finding, InstanceResult, Outcome
from kgym_vmmanager.console import Console
from kgym_vmmanager.plan import PROGRAM, Ended, Ending
from kgym_vmmanager.ssh import ConnectionLost, Ssh

_SECONDS = 180.0
_DONE = "done"


class SmokeTest:
    """Runs the smoke test once, where a `Session` runs a reproducer."""

    def __init__(self, output: Console) -> None:
        self.seconds = 0.0
        self.runs = 1
        self.ends: dict[End, int] = {}
        self.text = ""
        self._output = output

    async def run(
        self,
        ssh: Ssh,
        reconnect: Callable[[], Awaitable[Ssh]],
        is_idle: Callable[[], Awaitable[bool]],
    ) -> Ending:
        """Run it to its end; raises Ended if the guest is lost on the way."""
        del reconnect, is_idle  # a guest that is lost has failed
        begin = time.monotonic()
        try:
            _, said = await ssh.run(PROGRAM, limit=_SECONDS)
        except ConnectionLost as error:
            raise Ended(Outcome.SSH_LOST, f"the smoke test did not end: {error}") from error
        finally:
            self.seconds = time.monotonic() - begin
        self._output.feed(said)
        self.text = said.decode(errors="replace")
        return Ending(Outcome.SURVIVED)


def findings(result: InstanceResult, text: str) -> Iterator[Finding]:
    """Yield what is wrong with a kernel on which the smoke test ended so and said that. Pure."""
    if result.outcome is Outcome.STOPPED:
        return
    if result.outcome is not Outcome.SURVIVED:
        message = f"the smoke test ended with {result.outcome}: {result.detail}"
        yield Finding(check="smoke", reason=str(result.outcome), message=message)
        return
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    for words in lines:
        if words[:1] == ["fail"]:
            yield Finding(check="smoke", reason=words[1], message=" ".join(words[1:]))
    if [_DONE] not in lines:
        last = text.strip().splitlines()[-1:] or ["nothing"]
        message = f"the smoke test broke off; its last words: {last[0]}"
        yield Finding(check="smoke", reason="broke_off", message=message)

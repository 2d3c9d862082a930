"""The smoke test: whether a patched kernel still does what ordinary programs need.

guest/inside/smoke.c prints a line for each check: `ok NAME`, `skip NAME WHY` (the kernel was built
without it) or `fail NAME WHY`, and `done` at the end.
"""

import re
from collections.abc import Iterator
from itertools import islice

from kgym.api.steps import Finding, InstanceOutcome, InstanceResult
from kgym.host.quoted_words import quoted
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.guest_session import GuestSession
from kgym_vmmanager.guest.paths import PROGRAM
from kgym_vmmanager.guest.ssh import Ssh

_SECONDS = 180.0
_DONE = "done"
# The output is hostile: a patched kernel can change what programs print. The limit is more than
# guest/inside/smoke.c has checks.
_MOST_FINDINGS = 40
_MOST_WORDS = 300
_FAILURE = re.compile(rf"fail (\w[\w.-]{{,39}})(?: .{{,{_MOST_WORDS}}}|$)")


class SmokeTest(GuestSession):
    """A session that runs the smoke test once."""

    lost = "the smoke test did not end"

    def __init__(self, output: Console) -> None:
        super().__init__()
        self.text = ""
        self._output = output

    async def work(self, ssh: Ssh) -> None:
        """Run the smoke test to its end."""
        _, output = await ssh.run(PROGRAM, limit=_SECONDS)
        self._output.feed(output)
        self.text = output.decode(errors="replace")


def findings(result: InstanceResult, text: str) -> Iterator[Finding]:
    """Yield the failures of a smoke test that ended with `result` and printed `text`. Pure."""
    if result.outcome is InstanceOutcome.STOPPED:
        return
    if result.outcome is not InstanceOutcome.SURVIVED:
        message = f"the smoke test ended with {result.outcome}: {result.detail}"
        yield Finding(check="smoke", reason=str(result.outcome), message=message)
        return
    lines = text.splitlines()
    failures = {match[1]: match[0] for line in lines if (match := _FAILURE.match(line))}
    for name, words in islice(failures.items(), _MOST_FINDINGS):
        yield Finding(check="smoke", reason=name, message=quoted(words.removeprefix("fail ")))
    if len(failures) > _MOST_FINDINGS:
        message = f"the smoke test named {len(failures)} failures; the others are left out"
        yield Finding(check="smoke", reason="too_many", message=message)
    if _DONE not in lines:
        last = text.strip().splitlines()[-1:] or ["nothing"]
        message = f"the smoke test broke off; its last words: {quoted(last[0], _MOST_WORDS)}"
        yield Finding(check="smoke", reason="broke_off", message=message)

"""Consoles of a reproduce step, and what patches print there for debugging."""

import asyncio
import re

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import InstanceArtifact
from kgym.bugs.conclusion import reproduced
from kgym.client import AsyncClient
from kgym.crash.report.repeats import counted
from kgym.errors import UserError

# Marks the lines that a patch prints for debugging: `pr_info("kgym: …")`.
DEBUGGING = "kgym: "
# Lines of the guest's own init with the same mark.
_OWN = re.compile(r"kgym: (guest ready|root disk refused|helper refused)")
# Characters of lines for debugging that an answer shows.
_MOST = 8000
# The file of a console is not larger (`kgym_vmmanager.guest.console`).
_BYTES = 33 << 20


async def console(client: AsyncClient, job: JobView, step: StepView) -> str:
    """Return the console of the instance that decided a verdict, at its last try.

    Empty if the step has none, or if retention has removed it.
    """
    result = reproduced(step)
    if result is None or not result.instances:
        return ""
    decides = min(result.instances, key=lambda instance: instance.title != result.title)
    name = InstanceArtifact.CONSOLE.of(rf"{decides.number}(?:-retry-\d+)?")
    return await artifact_text(client, job, step, name)


async def artifact_text(client: AsyncClient, job: JobView, step: StepView, name: str) -> str:
    """Return the text of the last artifact whose name matches an expression; empty without one."""
    names = [each.name for each in step.artifacts if re.fullmatch(name, each.name)]
    if not names or step.artifacts_gone_at is not None:
        return ""
    content = bytearray()
    try:
        last = max(names, key=lambda name: (len(name), name))
        async for part in client.read_artifact(job.id, step.number, last):
            content += part
            if len(content) > _BYTES:
                break
    except UserError:  # removed meanwhile
        return ""
    return content.decode(errors="replace").replace("\r\n", "\n")


async def printed(client: AsyncClient, job: JobView, step: StepView | None, change: str) -> str:
    """Return what a change prints for debugging on its kernel; empty if it prints nothing."""
    if step is None or DEBUGGING not in change:
        return ""
    return await asyncio.to_thread(debugging, await console(client, job, step))


def debugging(log: str) -> str:
    """Return the lines of a console that a patch prints for debugging."""
    lines = [line for line in log.split("\n") if DEBUGGING in line and not _OWN.search(line)]
    # Counting repeated lines takes time: a patch may print without end.
    return shortened(counted(shortened("\n".join(lines), 8 * _MOST)), _MOST)


def shortened(text: str, most: int) -> str:
    """Return a text; of a longer one, the beginning and the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"

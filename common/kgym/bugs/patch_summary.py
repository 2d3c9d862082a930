"""What a finished job says about each of its patches. Pure."""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from kgym.api.jobs import JobView
from kgym.api.patch_rows import PatchSummary
from kgym.api.steps import BuildSpec, CheckResult, CheckSpec, Patch, ReproduceResult
from kgym.bugs.conclusion import Conclusion, check_outcome, check_reason, in_one_line
from kgym.errors import UserError
from kgym.source import patching, unified_diff


def summaries(job: JobView, concluded: Conclusion) -> list[PatchSummary]:
    """Return a summary of each patch that the job tries or checks; none if it has no patch.

    A step may lack its spec: then the size of its patches is not known.
    """
    for step in job.steps:
        if isinstance(step.result, CheckResult):
            spec = step.spec
            asked = spec.patches if isinstance(spec, CheckSpec) else [None] * 1000
            return [
                PatchSummary(
                    patch=check.name,
                    outcome=check_outcome(check.outcome),
                    reason=in_one_line(check_reason(check)) or None,
                    **_size([patch] if patch else []),
                )
                for patch, check in zip(asked, step.result.patches, strict=False)
            ]
    tried = _on_trial(job)
    if not (tried or concluded.evidence):
        return []
    # A bug that does not show without the patch is not gone.
    was_there = concluded.trial is not None and concluded.trial.verdicts
    results = [step.result for step in job.steps if isinstance(step.result, ReproduceResult)]
    return [
        PatchSummary(
            patch=tried[0].name if tried else None,
            outcome=concluded.outcome,
            reason=concluded.reason,
            evidence={item.check: item.met for item in concluded.evidence},
            confidence=results[-1].confidence if was_there else None,
            **_size(tried),
        )
    ]


def _on_trial(job: JobView) -> list[Patch]:
    for step in job.steps:
        if isinstance(step.spec, BuildSpec) and step.spec.review:
            names = set(step.spec.review)
            return [patch for patch in step.spec.patches if patch.name in names]
    return []


def _size(patches: Sequence[Patch]) -> dict[str, Any]:
    """Return the hash and the size of a change; nothing if it cannot be read."""
    try:
        files = [
            file
            for patch in patches
            for file in unified_diff.parse(patching.as_diff(patch), patch.name)
        ]
        change = "".join(map(patching.identity, patches))
    except UserError:
        return {}
    if not files:
        return {}
    signs = Counter(line[0] for file in files for hunk in file.hunks for line in hunk.readings[0])
    return {
        "change": sha256(change.encode()).hexdigest()[:16],
        "files": len({file.paths[1] for file in files}),
        "added": signs["+"],
        "removed": signs["-"],
    }

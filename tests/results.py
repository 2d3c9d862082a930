"""Results of steps, as tests give them: whatever is not named is empty."""

from typing import Any

from kgym.api.steps import BuildResult, ReproduceResult, Verdict


def built(**fields: Any) -> BuildResult:
    """Return what a build comes to."""
    empty: dict[str, Any] = {
        "source_identity": "",
        "kernel_release": "6.1.0",
        "compiler_version": "",
        "tree": "",
        "tree_cached": True,
        "backports": [],
        "dropped_symbols": [],
        "objects_compiled": 1,
        "warnings": [],
        "seconds": {},
    }
    return BuildResult.model_validate({**empty, **fields})


def ran(
    verdict: Verdict = Verdict.NO_CRASH, title: str | None = None, **fields: Any
) -> ReproduceResult:
    """Return what two runs come to."""
    empty: dict[str, Any] = {
        "verdict": verdict,
        "reason": f"it was {verdict}",
        "title": title,
        "crashed": int(title is not None),
        "completed": 2,
        "requested": 2,
        "unseen_chance": None,
        "accelerator": "tcg",
        "instances": [],
        "seconds": {},
    }
    return ReproduceResult.model_validate({**empty, **fields})

"""Patches made elsewhere, as attempts: SWE-bench's predictions, kArena's imports, folders.

Sources: SWE-bench, docs/guides/evaluation.md (predictions); ARiSE-Lab/live-kbench,
kArena/patch_importer.py (commit 8849209).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field, StrictBool

from kgym.api.faults import refused_at
from kgym.bench.attempt_record import Account, BugId, Cost, Setup, Text, Words
from kgym.bench.dataset_files import parsed_json, read_bounded, rows_of
from kgym.errors import NotFound, UserError

# Maximum bytes of a file of patches, and of a patch or trajectory of its own.
FILE, OWN = 1 << 30, 64 << 20
# Maximum number of patches: each takes a kernel.
MOST = 100_000
# In place of the name of an agent's configuration: nobody knows what such an agent could look up.
IMPORTED = "imported"
_RESOLVED = {"notReproduced": True, "pass": True, "reproduced": False, "trigger": False}


@dataclass(frozen=True, slots=True)
class ImportedPatch:
    """A patch of a bug; `run` numbers those of the same setup and bug."""

    bug: BugId
    setup: Setup
    diff: str
    account: Account
    trajectory: bytes | None = None
    run: int = 0

    @property
    def costs(self) -> dict[str, Any]:
        """The costs of the attempt, as its agent reports them: nobody else measured them."""
        known = {"dollars": self.account.dollars, "seconds": self.account.seconds}
        return {**known, "kernel_runs": None, "kernel_seconds": None}


def _either(*names: str) -> Any:
    return Field(None, validation_alias=AliasChoices(*names))


class _Row(BaseModel):
    """A patch in a file, by our names or those of another format; further fields are ignored."""

    bug: BugId = Field(validation_alias=AliasChoices("bug", "instance_id"))
    diff: Text | None = _either("patch", "model_patch", "patchContent")
    agent: Words | None = None
    model: Words | None = _either("model", "model_name_or_path")
    dollars: Cost | None = _either("dollars", "cost", "dollarCost")
    seconds: Cost | None = _either("seconds", "timeCost")
    ended: Words | None = _either("ended", "exitReason")
    verdict: StrictBool | Words | None = _either("verdict", "resolved", "crashResolved")
    trajectory: Annotated[str, Field(pattern=r"^[^\x00]*$")] | None = _either(
        "trajectory", "trajectoryPath"
    )


def read(path: Path, agent: str, model: str = "") -> list[ImportedPatch]:
    """Return the patches of a file or folder; `agent` and `model` are for patches that name none.

    A file holds SWE-bench's predictions (JSON lines, or JSON), or what kArena imports (JSON). A
    folder holds BUG/NAME.patch. Trajectories are files of the folder that holds the file. Raises
    NotFound `no_patches`, UserError `bad_patches`, and as `dataset_files.rows_of` does.
    """
    rows = _of_folder(path) if path.is_dir() else _of_file(path)
    patches: list[ImportedPatch] = []
    runs = Counter[tuple[str, Setup]]()
    for patch in (_patch(row, path, number, agent, model) for number, row in enumerate(rows, 1)):
        runs[patch.bug, patch.setup] += 1
        patches.append(replace(patch, run=runs[patch.bug, patch.setup]))
        if len(patches) > MOST:
            raise UserError("bad_patches", f"{path} has more than {MOST:,} patches")
    if not patches:
        raise NotFound("no_patches", f"{path} holds neither predictions nor BUG/NAME.patch")
    return patches


def _patch(row: Any, path: Path, number: int, agent: str, model: str) -> ImportedPatch:
    with refused_at(f"{path}, patch {number}", "bad_patches"):
        entry = _Row.model_validate(row)
        resolved = _RESOLVED.get(entry.verdict) if isinstance(entry.verdict, str) else entry.verdict
        return ImportedPatch(
            bug=entry.bug,
            setup=Setup(agent=entry.agent or agent, settings=IMPORTED, model=entry.model or model),
            diff=entry.diff or "",
            account=Account(
                dollars=entry.dollars, seconds=entry.seconds, ended=entry.ended, resolved=resolved
            ),
            trajectory=_trajectory(path, entry.trajectory),
        )


def _of_folder(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted([*folder.glob("*/*.patch"), *folder.glob("*/*.diff")]):
        if _is_own(path, folder.resolve()):
            yield {
                "bug": path.parent.name,
                "patch": read_bounded(path, OWN).decode(errors="replace"),
            }


def _of_file(path: Path) -> Iterable[object]:
    if path.suffix != ".json":
        return rows_of(path)
    whole = parsed_json(read_bounded(path, FILE), path)
    if not isinstance(whole, dict):
        return whole if isinstance(whole, list) else [whole]
    if isinstance(results := whole.get("results"), dict):
        return [
            {"bug": bug, **row}
            for bug, rows in results.items()
            for row in sorted(_rows(rows), key=lambda row: str(row.get("id")).zfill(20))
        ]
    # Predictions keyed by bug, or a single prediction.
    return whole.values() if all(isinstance(row, dict) for row in whole.values()) else [whole]


def _rows(rows: object) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _trajectory(path: Path, name: str | None) -> bytes | None:
    """Return a file beside the patches; None if there is none, or it lies elsewhere."""
    home = (path if path.is_dir() else path.parent).resolve()
    return read_bounded(home / name, OWN) if name and _is_own(home / name, home) else None


def _is_own(path: Path, home: Path) -> bool:
    """Return whether a path leads to a regular file below `home`."""
    # Patches may come from anybody: no name or link may lead to other files of this machine. And
    # opening a pipe would wait for ever.
    return path.resolve().is_relative_to(home) and path.is_file()

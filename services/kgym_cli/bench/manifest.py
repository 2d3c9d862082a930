"""Manifest of published results: digests of a folder's files, and the figures that they give."""

import json
from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import Any

from kgym.api.faults import refused_at
from kgym.api.steps import Sha256, Strict
from kgym.bench import attempt_files, dataset
from kgym.bench.report import Report
from kgym.errors import KgymError, NotFound, file_errors
from kgym.transport.artifact_storage import sha256_of
from kgym_cli.bench import leaderboard

NAME = "manifest.json"
# Maximum bytes: a manifest may come from anywhere.
MOST = 64 << 20
FILES = (
    *(dataset.ABOUT, dataset.BUGS, "campaign.json", "README.md"),
    *(attempt_files.NAME, attempt_files.FAILED),
)


class Manifest(Strict):
    """`manifest.json`: SHA-256 digests by name of file, and the report."""

    files: dict[str, Sha256]
    report: Report


def write(folder: Path) -> None:
    """Write the manifest of a campaign's folder; raise as `of_folder` does."""
    manifest = Manifest(files=_digests(folder), report=leaderboard.of_folder(folder))
    (folder / NAME).write_text(manifest.model_dump_json(indent=1) + "\n")


def differences(folder: Path) -> list[str]:
    """Return how a folder differs from its manifest; raise NotFound `no_manifest`."""
    path = folder / NAME
    with file_errors(path, "no_manifest", NotFound), path.open("rb") as file:
        data = file.read(MOST)
    with refused_at(str(path), "bad_manifest"):
        stated = Manifest.model_validate_json(data)
    digests = _digests(folder)
    changed = [
        f"{name} is not the file that the manifest names"
        for name in sorted({*digests, *stated.files})
        if digests.get(name) != stated.files.get(name)
    ]
    try:
        own = leaderboard.of_folder(folder)
    except KgymError as error:
        return [*changed, str(error)]
    both = (json.loads(report.model_dump_json()) for report in (stated.report, own))
    return [*changed, *(f"recomputing gives another {place}" for place in _differing(*both))]


def _digests(folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in FILES if (folder / name).is_file()}


def _differing(stated: Any, own: Any, place: str = "report") -> Iterator[str]:
    """Yield the places where two values of JSON differ."""
    if isinstance(stated, dict) and isinstance(own, dict) and stated.keys() == own.keys():
        for key in own:
            yield from _differing(stated[key], own[key], f"{place}.{key}")
    elif isinstance(stated, list) and isinstance(own, list) and len(stated) == len(own):
        for number, pair in enumerate(zip(stated, own, strict=True)):
            yield from _differing(*pair, f"{place}[{number}]")
    # The bootstrap's sums depend on the machine's arithmetic in the last digits.
    elif stated != own and not (
        isinstance(stated, float) and isinstance(own, float) and isclose(stated, own, abs_tol=1e-5)
    ):
        yield place

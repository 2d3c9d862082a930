"""How an entry is made: from the nearest entry, from scratch, or both ways to compare them.

An entry made from another one must equal the one made from scratch. A share of such builds is
rehearsed: done both ways, and compared (`comparison.py`). If they differ, the one from scratch
becomes the entry, the reason is stored with it, and further entries of this compiler are rehearsed
until a rehearsal finds no difference.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kgym.api.suitecache import EntryMaking
from kgym.errors import UserError
from kgym.host import sandbox
from kgym.worker import memo
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.comparison import fingerprint
from kgym_builder.suitecache.compiled_trees import Identified
from kgym_builder.suitecache.manifest import Manifest
from kgym_builder.suitecache.near_build import Base, NotNear, compile_near
from kgym_builder.suitecache.nearest import Candidate, Found, NearRules, Wanted, nearest
from kgym_builder.suitecache.tree_build import Compiled, TreeBuild

# Takes an entry as a base until the attempt ends; returns None if it cannot be taken.
TakeBase = Callable[[Candidate], Awaitable[Base | None]]
# Differences of two kernels that are named in a message.
_SHOWN = 10

Rehearsal = Literal["none", "equal", "unequal"]


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A compiled kernel, the build that made it, and the entry it was made from, if any."""

    build: TreeBuild
    compiled: Compiled
    base: Base | None = None


async def make_entry(
    build: TreeBuild,
    identified: Identified,
    folder: Path,
    take_base: TakeBase,
    rules: NearRules,
    objects: int | None,
    *,
    fresh: bool,
) -> EntryMaking:
    """Make the entry of the source in `build.tree`, and leave its files in `folder`.

    With `fresh`, it is made from scratch; `objects` is how many that compiles, if known.
    """
    run, toolchain = build.run, memo.digest(*build.tools.parts)
    seconds: dict[str, float] = {}
    manifest, nearby = None, Found([], "it was asked for anew", doubted=False)
    with run.stage("manifest", seconds):
        try:
            manifest = await Manifest.read(build.tree)
        except UserError as error:  # odd names: such a source can only be built from scratch
            nearby = nearby if fresh else Found([], error.message, doubted=False)
    if manifest is not None and not fresh:
        wanted = Wanted(identified.identity, identified.config, toolchain, manifest)
        with run.stage("nearest", seconds):
            nearby = await nearest(run, wanted, rules)

    near, reason = None, nearby.reason
    if manifest is not None and not fresh:
        near, reason = await _from_nearest(build, identified, manifest, nearby, take_base, seconds)
    # Sampled by identity, so that a retry of the step makes the same choice.
    drawn = int(identified.identity[:8], 16) < rules.rehearsals * (1 << 32)
    rehearse = near is not None and (drawn or nearby.doubted)
    full = None
    if near is None or rehearse:
        with run.stage("make", seconds):
            full = _Kernel(build, await build.compile(identified, objects))
    rehearsal: Rehearsal = "none"
    if near is not None and full is not None:
        with run.stage("compare", seconds):
            rehearsal, reason = await _compare(near, full)
    chosen = full if near is None or (full and rehearsal == "unequal") else near
    assert chosen is not None
    for other in (near, full):
        if other is not None and other is not chosen:
            await asyncio.to_thread(sandbox.remove, other.build.tree.overlay.folder)

    shortcut = None  # to be rehearsed
    if chosen.base and not rehearse and chosen.base.candidate.linked_alike:
        shortcut = chosen.base.candidate.about.shortcut
    about = await chosen.build.keep(identified, chosen.compiled, folder, seconds, shortcut=shortcut)
    candidate = near.base.candidate if near and near.base else None
    making = EntryMaking(
        image_sha256=about.image_sha256,
        toolchain=toolchain,
        files=manifest.digest if manifest else "",
        base=candidate.identity if candidate and chosen is near else None,
        files_changed=len(candidate.files.paths) if candidate else 0,
        symbols_changed=candidate.symbols if candidate else 0,
        objects=chosen.compiled.objects,
        reason="" if chosen is near else reason,
        rehearsal=rehearsal,
        rehearsed=candidate.identity if candidate and rehearsal != "none" else None,
        made_at=datetime.now(UTC),
        seconds=chosen.compiled.seconds,
    )
    (folder / compiled_trees.MAKING).write_text(making.model_dump_json())
    if manifest is not None:
        (folder / compiled_trees.MANIFEST).write_bytes(manifest.text())
    return making


async def _from_nearest(
    build: TreeBuild,
    identified: Identified,
    manifest: Manifest,
    nearby: Found,
    take_base: TakeBase,
    seconds: dict[str, float],
) -> tuple[_Kernel | None, str]:
    """Return the kernel made from the nearest entry that serves; or None, and why none does."""
    run, reason = build.run, nearby.reason
    for candidate in nearby.candidates:
        base = await take_base(candidate)
        if base is None:
            reason = f"{candidate.identity}, which is near, could not be taken"
            continue
        run.log(
            f"made from entry {candidate.identity}: {len(candidate.files.paths)} files and"
            f" {candidate.symbols} symbols of the config differ"
        )
        try:
            with run.stage("near", seconds):
                near = await compile_near(base, build, identified, manifest, run.folder / "near")
        except NotNear as error:
            reason = error.message
            run.log(reason)
        else:
            return _Kernel(*near, base), reason
    run.log(f"made from scratch: {reason}")
    return None, reason


async def _compare(near: _Kernel, full: _Kernel) -> tuple[Rehearsal, str]:
    """Return whether both are the same kernel, and what differs if not."""
    ours = await fingerprint(near.build.tree, near.compiled)
    theirs = await fingerprint(full.build.tree, full.compiled)
    differ = sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )
    if not differ:
        near.build.run.log("rehearsal: from scratch, the kernel is the same")
        return "equal", ""
    assert near.base is not None
    more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
    reason = (
        f"made from {near.base.candidate.identity}, it would have been another kernel:"
        f" {', '.join(differ[:_SHOWN])}{more} differ"
    )
    near.build.run.log(f"rehearsal: {reason}")
    return "unequal", reason

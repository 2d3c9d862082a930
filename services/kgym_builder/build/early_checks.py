"""What later steps of a job need, tried before anything is compiled for the first one.

A patch that does not apply, or a program that does not compile, would otherwise cost a kernel
and a crash before anybody heard of it.
"""

from collections.abc import Sequence

from kgym.api.steps import BuildSpec, Patch, Reproducer, Strict
from kgym.host import sandbox
from kgym.host.reproducer_compiler import compile_reproducer
from kgym.worker.context import StepContext
from kgym_builder import memo
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files

LAYOUT = 1


class _Good(Strict):
    """That it serves; what does not is told anew each time."""


async def compile_all(run: StepContext, programs: Sequence[Reproducer]) -> None:
    """Compile those in C; raise UserError `reproducer_does_not_compile`, as that one does."""
    for number, program in enumerate(each for each in programs if each.kind == "c"):
        name = memo.key("program", LAYOUT, program.text)
        if await memo.recall(run, name, _Good):
            continue
        folder = run.folder / f"ahead-{number}"
        source = folder / "source" / "reproducer.c"
        source.parent.mkdir(parents=True)
        source.write_text(program.text)
        await compile_reproducer(source, folder / "program")
        sandbox.remove(folder)
        await memo.remember(run, name, _Good())


async def known(run: StepContext, identity: str, spec: BuildSpec) -> bool:
    """Return whether all patches are known to apply to this entry."""
    return all(
        [await memo.recall(run, _name(identity, spec, patch), _Good) for patch in _patches(spec)]
    )


async def apply_all(run: StepContext, identity: str, spec: BuildSpec, tree: Tree) -> None:
    """Apply each patch after the build's own, without writing any.

    Raises UserError as `kgym.source.patching.apply` does.
    """
    for patch in _patches(spec):
        await patched_files.changes(tree, [*spec.patches, patch], lambda note: None)
        await memo.remember(run, _name(identity, spec, patch), _Good())


def _patches(spec: BuildSpec) -> list[Patch]:
    return spec.ahead.patches if spec.ahead else []


def _name(identity: str, spec: BuildSpec, patch: Patch) -> str:
    texts = [each.model_dump(exclude={"name"}) for each in (*spec.patches, patch)]
    return memo.key("applies", LAYOUT, identity, texts)

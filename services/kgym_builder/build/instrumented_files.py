"""The files of a build whose functions get records, and the result for each."""

from collections.abc import Mapping, Sequence

from kgym.api.steps import InstrumentedFile
from kgym.errors import UserError
from kgym.source.instrument import Untraced, instrument
from kgym.source.patching import Change
from kgym_builder.kbuild.object_index import Dependents
from kgym_builder.kbuild.path_rules import OWN_MAKES
from kgym_builder.kbuild.working_tree import Tree


async def read(tree: Tree, paths: Sequence[str], changed: Sequence[Change]) -> dict[str, bytes]:
    """Return the files as patches leave them; raise UserError `no_such_file`."""
    patched = {change.path: change.content for change in changed}
    there = await tree.read(path for path in paths if path not in patched)
    contents = {path: patched.get(path, there.get(path)) for path in paths}
    missing = [path for path, content in contents.items() if content is None]
    if missing:
        raise UserError(
            "no_such_file", f"cannot instrument what the tree does not have: {', '.join(missing)}"
        )
    return {path: content for path, content in contents.items() if content is not None}


def instrumented(
    files: Mapping[str, bytes], untraced: Untraced, dependents: Mapping[str, Dependents]
) -> tuple[list[Change], list[InstrumentedFile]]:
    """Return the files with records, and what to tell of each.

    `dependents` say what each file is compiled into. Raises UserError as `instrument` does.
    """
    changes, results = [], []
    for path, source in files.items():
        objects = dependents[path].objects
        reason = untraced.reason(path)
        if dependents[path].made or any(OWN_MAKES.match(object_.path) for object_ in objects):
            reason = "something else than the kernel is made of it, too"
        if reason:
            results.append(InstrumentedFile(path=path, reason=reason, objects=len(objects)))
            continue
        done = instrument(source, path)
        changes.append(Change(path, done.content))
        results.append(
            InstrumentedFile(
                path=path,
                functions=len(done.functions),
                skipped=list(done.skipped),
                objects=len(objects),
            )
        )
    return changes, results

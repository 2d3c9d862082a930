"""Models of `bug.toml` and `configs/kernels/NAME.toml` (docs/own-bug.md)."""

import re
from typing import Annotated, Literal

from pydantic import AwareDatetime, Discriminator, Field, Tag, model_validator

from kgym.api.agent.nodes import CauseFunction
from kgym.api.steps import Compiler, CompletedEnd, Edit, Sha256, Strict, TreePath, VmShape, When
from kgym.api.steps.kernel import GitSource

# A reference of a bundle to a commit of its fix; others name CVEs, bugs of syzbot or pages.
FIX_COMMIT = re.compile(r"commit ([0-9a-f]{40})(?:: (.{1,10000}))?")


class BackportTable(Strict):
    """`[[kernel.backports]]`: a patch file, or edits, that this kernel needs to compile."""

    name: str
    when: When = When()
    patch: str | None = None
    edits: list[Edit] = []


class KernelFile(Strict):
    """`configs/kernels/NAME.toml`, or `[kernel]` of a bundle; paths are relative to the file."""

    description: str = ""
    packages: list[str] | None = Field(None, min_length=1)
    suite: str | None = Field(None, description="of the packages, if it is not the worker's own")
    git: str | None = Field(None, min_length=1)
    commit: str | None = Field(None, min_length=1)
    tree: str | None = Field(None, min_length=1, description="folder, taken as it is now")
    tarball: str | None = None
    sha256: Sha256 | None = None
    base: Literal["allnoconfig", "tinyconfig", "defconfig"] | None = None
    fragments: list[str] = []
    config: str | None = Field(None, description="file that holds a full .config")
    modules: Literal["load", "builtin"] = "load"
    compiler: Compiler = "gcc"
    backports: list[BackportTable] = []
    objects: int | None = Field(None, gt=0, description="of a full build, for the progress bar")
    jobs: int | None = Field(None, ge=1, le=1024, description="of make, side by side (`-j`)")
    make_seconds: int | None = Field(
        None, ge=1, le=7 * 86400, description="that a run of make may take"
    )

    @model_validator(mode="after")
    def _whole(self) -> "KernelFile":
        sources = [self.packages, self.git, self.tarball, self.tree]
        if sum(source is not None for source in sources) != 1:
            raise ValueError("name one source: `packages`, `git`, `tarball` or `tree`")
        if (self.git is None) != (self.commit is None):
            raise ValueError("`git` and `commit` go together")
        if (self.tarball is None) != (self.sha256 is None):
            raise ValueError("`tarball` and `sha256` go together")
        if self.suite is not None and self.packages is None:
            raise ValueError("`suite` goes with `packages`")
        if (self.base is None) == (self.config is None):
            raise ValueError("give either `base` (with `fragments`) or `config`")
        if self.config is not None and self.fragments:
            raise ValueError("`fragments` go with `base`, not with `config`")
        return self


KernelName = Annotated[str, Field(max_length=100, pattern=r"^[\w.+-]+$")]


class KernelUse(Strict):
    """`[kernel] use = "NAME"`: a shared kernel of `configs/kernels`."""

    use: KernelName


class ProgramTable(Strict):
    """A program: C, or a syzkaller program with the commit of the syzkaller that found it.

    With `sha256`, the file may also lie in the folder KGYM_PROGRAMS: bundles made from others'
    datasets name their programs this way.
    """

    file: str
    sha256: Sha256 | None = None
    kind: Literal["c", "syz"] = "c"
    syzkaller: str | None = None


class ReproducerTable(ProgramTable):
    """`[reproducer]`: the program, and how long a patched kernel must survive it.

    `[[reproducer.others]]` are further programs; the instances run all of them in turn. Programs of
    `[[reproducer.on_request]]` also show the bug, but run only on request.
    """

    time: float = Field(120, gt=0, le=86400, description="seconds")
    instances: int = Field(2, ge=1, le=1000)
    completed: list[CompletedEnd] = Field([], description="how a run that did its work ends")
    others: list[ProgramTable] = []
    on_request: list[ProgramTable] = []


class ChangeTable(Strict):
    """`[regress]` and `[fix]`: a patch file, or edits."""

    patch: str | None = None
    edits: list[Edit] = []


class CauseTable(Strict):
    """`[cause]`: the commit that introduced the bug; `patch` is a file with its diff."""

    commit: str = Field("", max_length=100)
    title: str = Field("", max_length=1000)
    functions: list[CauseFunction] = Field([], max_length=10_000)
    patch: str | None = None

    @model_validator(mode="after")
    def _named(self) -> "CauseTable":
        if not (self.commit or self.title):
            raise ValueError("give the `commit`, its `title`, or both")
        return self


class DiscussionTable(Strict):
    """`[discussion]`: mails on the bug, for agents that are not being measured."""

    mails: list[str] = Field(min_length=1, max_length=100, description="mboxes")
    before: AwareDatetime = Field(description="the bug's date: later mails are not shown")


class OnKernel(Strict):
    """`[on."linux-5.10"]`: fields that differ on this shared kernel."""

    title: str | None = Field(None, min_length=1)
    alt_titles: list[str] | None = None
    files: list[TreePath] | None = None
    regress: ChangeTable | None = None
    fix: ChangeTable | None = None


class BugFile(Strict):
    """`bug.toml` (docs/own-bug.md)."""

    title: str = Field(min_length=1)
    alt_titles: list[str] = []
    kind: str = Field("", alias="class")
    summary: str = ""
    references: list[str] = []
    fixed: AwareDatetime | None = Field(None, description="when the developers' fix was made")
    subsystems: list[str] = []
    files: list[TreePath] = []
    kernel: Annotated[
        Annotated[KernelUse, Tag("use")] | Annotated[KernelFile, Tag("own")],
        Discriminator(lambda table: "use" if isinstance(table, dict) and "use" in table else "own"),
    ]
    reproducer: ReproducerTable
    vm: VmShape = VmShape()
    regress: ChangeTable | None = None
    fix: ChangeTable | None = None
    cause: CauseTable | None = None
    history: GitSource | None = Field(
        None, description="a repository and its last commit that agents may read, before the fix"
    )
    discussion: DiscussionTable | None = None
    on: dict[KernelName, OnKernel] = Field({}, max_length=100)

    def with_kernel(self, kernel: str) -> "BugFile":
        """Return the file with a shared kernel in place of its own, and that kernel's changes."""
        other = self.on.get(kernel, OnKernel())
        changes = {name: getattr(other, name) for name in other.model_fields_set}
        if "regress" in changes:  # the fix of another kernel does not undo it
            changes = {"fix": None} | changes
        return self.model_copy(update={"kernel": KernelUse(use=kernel), **changes})

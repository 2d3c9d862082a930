"""Specification of a kernel: source, config, compiler, and changes."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from kgym.api.steps.base import Needs, Sha256, Step, Strict, TreePath
from kgym.api.steps.compilers import Compiler, needed

# Maximum characters of a config or a diff.
TEXT = 4 << 20


# Name of a readable source with its backports. The scheduler makes a path of what workers report.
SourceName = Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$", max_length=40)]


# --- kernel source and config -------------------------------------------------------------


CommitName = Annotated[
    str,
    Field(
        max_length=250,
        pattern=r"^(parent-of )?[\w][\w./-]*([~^][0-9]{0,4})*$",
        description="full commit id, tag, branch or HEAD; `COMMIT^`, `COMMIT~2` or"
        " `parent-of COMMIT` for one before it",
    ),
]


class GitSource(Strict):
    """A commit of a Git repository."""

    kind: Literal["git"] = "git"
    url: str = Field(
        max_length=2000,
        description="http(s) URL; or an absolute path or file URL on the builder's host, below a"
        " folder that its operator allows",
    )
    commit: CommitName


class TarballSource(Strict):
    """A tar archive with one top folder, checked against its SHA-256."""

    kind: Literal["tarball"] = "tarball"
    url: str = Field(
        max_length=2000,
        description="http(s) URL; or an absolute path or file URL on the builder's host, below a"
        " folder that its operator allows",
    )
    sha256: Sha256


class PackageSource(Strict):
    """A distribution's source package of the kernel (`linux-source-…`), from its own archive."""

    kind: Literal["package"] = "package"
    names: list[Annotated[str, Field(max_length=100, pattern=r"^linux-source-[a-z0-9.+-]+$")]] = (
        Field(
            min_length=1, max_length=20, description="the first that the distribution has is used"
        )
    )
    suite: str | None = Field(
        None,
        max_length=45,
        pattern=r"^[a-z][a-z0-9.]{1,30}(-(security|updates|backports))?$",
        description="suite of the distribution's archive, such as `bullseye` or"
        " `trixie-security`; left out, the worker's own",
    )


KernelSource = Annotated[GitSource | TarballSource | PackageSource, Field(discriminator="kind")]


class KernelConfig(Strict):
    """A full `.config`, or a base target of kconfig with fragments on top of it.

    On `allnoconfig`, a symbol that no fragment mentions is `n`; on the other
    bases it keeps the base's value or takes its default.
    """

    full: str | None = Field(None, max_length=TEXT, description="text of a complete .config")
    base: Literal["allnoconfig", "tinyconfig", "defconfig"] | None = None
    fragments: list[Annotated[str, Field(max_length=TEXT)]] = Field(
        [], max_length=100, description="texts of `CONFIG_X=y` lines, later ones win"
    )
    modules: Literal["load", "builtin"] = Field(
        "load",
        description="how symbols with `m` are built: as modules that guests load on demand; or"
        " built in (`y`), if kconfig allows it",
    )

    @model_validator(mode="after")
    def _one_form(self) -> "KernelConfig":
        if (self.full is None) == (self.base is None):
            raise ValueError("give either `full` or `base` with `fragments`")
        if self.full is not None and self.fragments:
            raise ValueError("`fragments` go with `base`, not with `full`")
        return self

    @property
    def texts(self) -> list[str]:
        """All submitted texts of the config."""
        return self.fragments if self.full is None else [self.full]


# --- changes to the source ----------------------------------------------------------------


class Edit(Strict):
    """Replace the one place in `file` that reads `original`."""

    file: TreePath
    original: str = Field(min_length=1, max_length=1 << 20)
    replacement: str = Field(max_length=1 << 20)


class Patch(Strict):
    """One named change to the kernel source: a unified diff, or edits."""

    name: str = Field("patch", max_length=200)
    diff: str | None = Field(
        None,
        max_length=TEXT,
        description="unified diff, paths relative to the tree; or mails with diffs, in any encoding"
        " of MIME: a series is applied in order",
    )
    edits: list[Edit] = Field([], max_length=1000)
    url: str | None = Field(
        None,
        max_length=2000,
        pattern=r"^https?://",
        description="of a patch to check: a mail in a mailing list's archive, whose series the"
        " worker fetches, if its operator allows the host",
    )
    drop_binaries: bool = Field(
        False, description="leave out binary files of the diff, instead of refusing it"
    )

    @model_validator(mode="after")
    def _one_form(self) -> "Patch":
        if (self.diff is not None) + bool(self.edits) + (self.url is not None) != 1:
            raise ValueError("give either `diff` or `edits`; or `url`, to check what is there")
        return self


# --- changes that old kernels need --------------------------------------------------------

Version = Annotated[str, Field(max_length=30, pattern=r"^[0-9]+(\.[0-9]+){0,2}$")]


class When(Strict):
    """The kernels and compilers that need a backport; versions as dotted numbers."""

    kernel_before: Version | None = None
    kernel_from: Version | None = None
    compiler: Literal["gcc", "clang"] | None = None
    compiler_from: Version | None = None
    compiler_before: Version | None = None


class Backport(Patch):
    """A change that an old kernel needs to compile with a toolchain: part of its source."""

    name: str = Field(max_length=60, pattern=r"^[a-z0-9][a-z0-9._-]*$")
    when: When = Field(When(), description="conditions, all of which must hold; empty: always")


def _of_different_names(backports: list[Backport]) -> list[Backport]:
    if len({backport.name for backport in backports}) < len(backports):
        raise ValueError("two backports have the same name")
    return backports


Backports = Annotated[
    list[Backport],
    Field(
        max_length=50,
        description="applied after the shipped ones, replacing those of the same name; changes that"
        " the source already has are left out",
    ),
    AfterValidator(_of_different_names),
]


# --- the kernel that changes are tried on -------------------------------------------------


class Kernel(Step):
    """An unpatched kernel: its SuiteCache entry is made once, by the first step that needs it."""

    source: KernelSource
    config: KernelConfig
    compiler: Compiler = "gcc"
    backports: Backports = []
    jobs: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="parallel jobs of make (`-j`); by default, and at most, the worker's number of"
        " cores",
    )
    make_seconds: int | None = Field(
        None,
        ge=1,
        le=7 * 86400,
        description="time limit of make; the worker's operator may set a lower one",
    )
    cache: Literal["use", "fresh", "refresh"] = Field(
        "use",
        description="`fresh` runs the step again even if its result is cached; `refresh` also"
        " rebuilds the SuiteCache entry",
    )

    def needs(self) -> Needs:
        """Return the needs of a build; all kernels are built for x86_64."""
        return needed(self.compiler)

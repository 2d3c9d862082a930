"""The `source` step: a kernel's source made readable over REST, without a build."""

from typing import Literal

from pydantic import Field

from kgym.api.steps.base import Count, Line, Name, Needs, Seconds, Step, StepKind, Strict
from kgym.api.steps.compilers import Compiler, needed
from kgym.api.steps.kernel import Backports, KernelSource, Patch


class SourceSpec(Step):
    """Make a source readable as builds see it: source, backports, then `patches` in order.

    Done once for all jobs with that source; afterwards it takes a moment.
    """

    kind: Literal[StepKind.SOURCE] = StepKind.SOURCE
    source: KernelSource
    compiler: Compiler = Field("gcc", description="on which it depends which backports apply")
    backports: Backports = []
    patches: list[Patch] = Field([], max_length=100)

    def needs(self) -> Needs:
        """Return what a build of this source needs, too."""
        return needed(self.compiler)


class SourceResult(Strict):
    """What can be read now, by this job's number."""

    kind: Literal[StepKind.SOURCE] = StepKind.SOURCE
    source_identity: Line = Field(description="e.g. `package:linux-source-6.1=6.1.192-1`")
    backports: list[Name] = Field(max_length=1000)
    source_tree: Name = Field(description="names the source with its backports")
    made: bool = Field(description="whether it was made by this step, not found")
    files: Count
    bytes: Count
    seconds: Seconds = Field(description="by stage: source, index, store")

"""The kernel's own tests of the files that a patch changes, and how they ended."""

from typing import Annotated

from pydantic import Field

from kgym.api.steps.base import Count, Line, Name, Strict

MOST_TESTS = 100
_Lines = Annotated[list[Line], Field(max_length=4 * MOST_TESTS)]


class KernelTests(Strict):
    """The tests that a build made from the sources of the unpatched tree."""

    tests: list[Name] = Field(
        [], max_length=MOST_TESTS, description="folder/program with its arguments; nearest first"
    )
    left_out: _Lines = Field([], description="what was not built, and why")


class KernelTestRun(Strict):
    """The kernel's own tests on a patched kernel, compared with two runs on the unpatched one."""

    passed: Count = Field(0, description="tests that pass on both kernels")
    failed: _Lines = Field([], description="tests that fail on the patched kernel alone, and how")
    left_out: _Lines = Field([], description="tests that tell nothing, and why")

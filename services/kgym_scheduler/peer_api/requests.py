"""Requests of kGymSuite's clients: the fields of its interface (commit 9b58d5f), bounded."""

# ruff: noqa: N815 - the names are theirs

from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS
from kgym.api.steps import Strict
from kgym.api.steps.kernel import TEXT

Short = Annotated[str, Field(max_length=2000)]
TagKey = Annotated[str, Field(min_length=1, max_length=90)]
TagValue = Annotated[str, Field(max_length=90)]
JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$", max_length=8)]


class Resource(Strict):
    """A file of an earlier job, by its key in this interface."""

    key: Short
    storageUri: Short = ""


class GitCommit(Strict):
    """A kernel's source and config."""

    gitUrl: Short
    commitId: Annotated[str, Field(max_length=250)]
    kConfig: Annotated[str, Field(max_length=TEXT)]
    arch: Annotated[str, Field(max_length=20)]
    compiler: Annotated[str, Field(max_length=100)]
    linker: Annotated[str, Field(max_length=100)] = ""


class BuilderArgument(Strict):
    """A build. The userspace image has no effect: this platform boots its own."""

    workerType: Literal["kbuilder"]
    kernelSource: Resource | GitCommit
    userspaceImage: Short = ""
    patch: Annotated[str, Field(max_length=TEXT)] = ""


class PeerReproducer(Strict):
    """A program, and how to run it."""

    reproducerType: Literal["c", "log"]
    reproducerText: Annotated[str, Field(min_length=1, max_length=1 << 20)]
    syzkallerCheckout: Short = ""
    syzkallerCheckoutRollback: bool = True
    syzkallerLatestTag: Short = ""
    restartTime: Annotated[str, Field(max_length=20, pattern=r"^[0-9]{1,5}(s|m|h)$")] = "10m"
    nInstance: Annotated[int, Field(ge=1, le=1000)] = 1
    threaded: bool = True
    nProc: Annotated[int, Field(ge=1, le=1000)] = 8


class PeerImage(Strict):
    """A kernel that an earlier job built."""

    vmImage: Resource
    vmlinux: Resource
    arch: Annotated[str, Field(max_length=20)] = "amd64"


class VmArgument(Strict):
    """Runs of a program on the kernel of an earlier stage or job."""

    workerType: Literal["kvmmanager"]
    reproducer: PeerReproducer
    image: Annotated[int, Field(ge=-1, lt=100)] | PeerImage
    machineType: Annotated[str, Field(max_length=100)] = ""


class NewJob(Strict):
    """A job: its stages in order, and its tags."""

    jobWorkers: Annotated[
        list[Annotated[BuilderArgument | VmArgument, Field(discriminator="workerType")]],
        Field(min_length=1, max_length=100),
    ]
    tags: Annotated[dict[TagKey, TagValue], Field(max_length=40)] = {}


class PageFilter(Strict):
    """The requested part of a list."""

    skip: Annotated[int, Field(ge=0, le=10_000), DIGITS] = 0
    pageSize: Annotated[int, Field(ge=0, le=500), DIGITS] = 20


class JobsFilter(PageFilter):
    """The requested part of the list of jobs, and its order."""

    sortBy: Literal["modifiedTime", "createdTime"] = "modifiedTime"


class TagFilter(PageFilter):
    """The tag of the requested jobs."""

    tagKey: Annotated[str, Field(max_length=90)] = ""
    tagValue: TagValue | None = None

"""Variants: programs close to the reproducer, and what became of them on a kernel."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kgym.api.steps.base import Count, Line, Name, Number, Strict

SEED_LIMIT = 1 << 48
# Version of the engine that makes a variant from a seed: the first eight digits of the SHA-256 of
# kgym_vmmanager/guest/inside/vary.c. Another version makes other variants of the same seeds.
ENGINE = "c303806f"
# Prefix of the versions of engines that vary syzkaller programs; the mutator's SHA-256 follows.
SYZ_ENGINE = "syz-"
_Seed = Annotated[int, Field(ge=0, lt=SEED_LIMIT)]
_Bits = Annotated[int, Field(ge=0, le=64)]
_Word = Annotated[int, Field(ge=0, lt=1 << 64)]


class Dictionary(Strict):
    """Constants of the machine code of a bug's functions, which variants use as values."""

    values: list[_Word] = Field([], max_length=400)
    fields: list[tuple[_Bits, _Bits]] = Field(
        [], max_length=40, description="bit fields: shift, width"
    )
    strings: list[Name] = Field([], max_length=200, description="in hexadecimal digits")


class Pace(Strict):
    """A run of the unchanged program, from which variants are made."""

    calls: int = Field(ge=1, lt=1 << 20, description="system calls that variants may change")
    milliseconds: int = Field(ge=0, lt=1 << 20, description="of the run")
    pause: int = Field(ge=0, lt=1 << 20, description="longest milliseconds without a call")


class QuietVariant(Strict):
    """A variant that did the same in two runs on a kernel, without a crash."""

    seed: _Seed
    digest: Name = Field(description="of its calls, results, and data they wrote")
    failed: Count = Field(description="calls that failed")


class Loss(Strict):
    """What a kernel loses with each run of a program: objects that are never freed."""

    name: Name = Field(description="a slab cache, `module NAME`, or `vmalloc` (pages)")
    per_run: Number = Field(description="objects")


class LearnedVariants(Strict):
    """What variants do on a kernel without a crash; later kernels are compared with it."""

    engine: Name = Field("", description="version of the engine; seeds differ between versions")
    dictionary: Dictionary = Dictionary()
    pace: Pace | None = None
    quiet: list[QuietVariant] = Field([], max_length=1000)
    ran: Count = Field(0, description="variants that ran")
    losses: list[Loss] | None = Field(
        None, max_length=1000, description="over the quiet variants; null: not measured"
    )
    missing: Line = Field("", description="why none, or fewer, were learned")
    seconds: Number = 0


class VariantCrashKind(StrEnum):
    """How a variant's crash relates to the bug."""

    SAME = "same"
    """The bug's own crash."""
    NEW = "new"
    """Another crash, which the unpatched kernel does not show."""
    OTHER_BUG = "other_bug"
    """Another bug: the unpatched kernel crashes in the same way."""
    UNKNOWN = "unknown"
    """Another crash; whether the unpatched kernel has it is not known."""


class VariantCrash(Strict):
    """A variant with which the kernel crashed."""

    seed: _Seed | None = Field(None, description="null: it did not crash again when run alone")
    mask: Count = Field(0, description="bits of the seed's changes that suffice")
    pace: Pace | None = Field(None, description="at which it ran, if it is a C program's")
    title: Line
    kind: VariantCrashKind
    changes: list[Line] = Field([], max_length=10, description="in words, as few as still crash")
    instance: Name = Field("", description="the guest's name, in the names of its artifacts")


class Equivalence(Strict):
    """Variants that behave on a patched kernel as on the one with the developers' fix."""

    same: int = Field(0, ge=0, le=1000, description="variants with the same calls and results")
    crashed: list[_Seed] = Field([], max_length=100, description="seeds that crash this kernel")
    different: list[_Seed] = Field([], max_length=1000, description="other seeds that differ")
    dropped: Count = Field(
        0, description="variants that differ from run to run, or do not end with the fix"
    )
    missing: Line = Field("", description="why variants were not compared, or not all of them")

    @property
    def compared(self) -> int:
        """Number of the variants that count."""
        return self.same + len(self.crashed) + len(self.different)


class VariantRun(Strict):
    """Variants of the program on a patched kernel."""

    ran: Count = Field(description="new variants that ran")
    compared: Count = Field(0, description="quiet variants of the unpatched kernel that ran here")
    same: Count = Field(0, description="those with the same calls and results")
    refused: list[_Seed] = Field([], max_length=1000, description="seeds of which more calls fail")
    different: list[_Seed] = Field([], max_length=1000, description="other seeds that differ")
    examples: list[Line] = Field([], max_length=10, description="differences in words")
    losses: list[Loss] | None = Field(
        None, max_length=1000, description="over the quiet variants; null: not measured"
    )
    program_losses: list[Loss] | None = Field(
        None, max_length=1000, description="over runs of the unchanged program"
    )
    leaked: list[Loss] = Field(
        [], max_length=1000, description="what is lost beyond the unpatched kernel's losses"
    )
    crashes: list[VariantCrash] = Field([], max_length=100)
    equivalence: Equivalence | None = Field(
        None, description="with the developers' fix; null if no `reference` was named"
    )
    missing: Line = Field("", description="why variants did not run, or not all of them")
    seconds: Number = 0

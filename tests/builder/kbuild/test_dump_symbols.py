"""What a dump asks of a kernel's config."""

from typing import get_args

import pytest

from kgym.api.steps import BuildSpec, DumpMethod, KernelConfig, PackageSource
from kgym_builder.kbuild.kconfig import DUMP_SYMBOLS, dumpable, with_symbols

SOURCE = PackageSource(names=["linux-source-6.1"])


def asked(config: KernelConfig, method: DumpMethod | None) -> KernelConfig:
    return dumpable(BuildSpec(source=SOURCE, config=config, for_dump=method)).config


@pytest.mark.parametrize("method", get_args(DumpMethod))
def test_a_fragment_asks_for_what_the_method_needs(method: DumpMethod) -> None:
    config = asked(KernelConfig(base="allnoconfig", fragments=["CONFIG_A=y\n"]), method)
    first, last = config.fragments
    assert first == "CONFIG_A=y\n"
    assert last.split() == [f"CONFIG_{name}=y" for name in DUMP_SYMBOLS[method]]


def test_in_a_full_config_the_last_word_counts() -> None:
    config = asked(KernelConfig(full="# CONFIG_KEXEC is not set\nCONFIG_A=y"), "kdump")
    assert str(config.full).startswith("# CONFIG_KEXEC is not set\nCONFIG_A=y\nCONFIG_KEXEC=y\n")


def test_without_a_dump_the_config_stays() -> None:
    config = KernelConfig(base="allnoconfig")
    assert asked(config, None) == config


def test_no_symbols_change_nothing_in_a_full_config_but_its_end() -> None:
    assert with_symbols(KernelConfig(full="CONFIG_A=y\n\n"), []).full == "CONFIG_A=y\n"

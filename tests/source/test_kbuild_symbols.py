"""What kbuild's Makefiles want for a file, as they are written in Linux."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.source.kbuild_symbols import conditions, places
from tests.tables import rows

MAKEFILE = Path(__file__).with_name("objects.mk").read_text()


@pytest.mark.parametrize(("item", "wanted"), rows(__file__, "conditions.tsv"))
def test_symbols_of_objects_and_folders(item: str, wanted: str) -> None:
    assert conditions(MAKEFILE, item) == set(wanted.split())


def test_the_folders_that_decide() -> None:
    assert list(places("net/802/garp.c")) == [("net/802", "garp.o"), ("net", "802/")]
    assert list(places("ipc/shm.c")) == [("ipc", "shm.o")]
    assert not list(places("include/linux/gfp.h"))


@pytest.mark.attack
def test_lists_within_themselves_end() -> None:
    assert conditions("a-$(CONFIG_A) := a.o b.o\nb-$(CONFIG_B) := a.o b.o\n", "a.o") == set()
    deep = "".join(f"o{n}-$(CONFIG_S{n}) += o{n + 1}.o\n" for n in range(5000))
    assert conditions(deep, "o5000.o") == set()
    wide = "".join(f"o{n}-y += {' '.join(f'o{m}.o' for m in range(99))}\n" for n in range(99))
    assert conditions(wide, "o0.o") == set()


@given(st.text("ab-$(CONFIG_)+=:\\#\n .oy"), st.text("ab.o/"))
def test_any_text_is_read(makefile: str, item: str) -> None:
    assert all(symbol for symbol in conditions(makefile, item))

"""Rust's panics, and the names of its functions."""

import pytest

from kgym.crash.report.rust_names import demangle
from tests.crash.reports import report_of
from tests.crash.test_titles import trace
from tests.tables import rows


def test_a_rust_panic_names_the_function_in_rusts_way() -> None:
    log = trace(
        "rust_kernel: panicked at drivers/my/driver.rs:60:5:\nattempt to add with overflow",
        "_RNvCs1_7___rustc17rust_begin_unwind+0x1/0x2\n"
        " _RNvNtCs2_4core9panicking9panic_fmt+0x1/0x2\n"
        " _RNvMs_CscPPB_9my_driverNtB4_6Device4mmap+0xe44/0xfb0",
    )
    report = report_of(log)
    assert report.title == "attempt to add with overflow in <my_driver::Device>::mmap"


@pytest.mark.parametrize(("symbol", "path"), rows(__file__, "rust_names.tsv"))
def test_a_mangled_name_is_a_path(symbol: str, path: str) -> None:
    """Of Rust; those of C++ stay."""
    assert demangle(symbol) == path


def test_a_name_that_would_fill_the_memory_stays_as_it_is() -> None:
    pairs = "".join(f"T{'B' + back + '_'}{'B' + back + '_'}E" for back in "012345678")
    symbol = f"_RINvC1a1b{pairs * 20}E"
    assert demangle(symbol) == symbol

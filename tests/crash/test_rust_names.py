"""Rust's panics, and the names of its functions."""

import pytest

from kgym.crash.report.rust_names import demangle
from tests.crash.reports import report_of
from tests.crash.test_titles import trace


def test_a_rust_panic_names_the_function_in_rusts_way() -> None:
    log = trace(
        "rust_kernel: panicked at drivers/my/driver.rs:60:5:\nattempt to add with overflow",
        "_RNvCs1_7___rustc17rust_begin_unwind+0x1/0x2\n"
        " _RNvNtCs2_4core9panicking9panic_fmt+0x1/0x2\n"
        " _RNvMs_CscPPB_9my_driverNtB4_6Device4mmap+0xe44/0xfb0",
    )
    report = report_of(log)
    assert report.title == "attempt to add with overflow in <my_driver::Device>::mmap"


@pytest.mark.parametrize(
    ("symbol", "path"),
    [
        ("_RNvCs1_9my_driver4open", "my_driver::open"),
        ("_RNCNvCs1_9my_driver4open0", "my_driver::open::{closure#0}"),
        ("_RNCNvCs1_9my_driver4opens_0", "my_driver::open::{closure#1}"),
        ("_RINvCs1_9my_driver4openmE", "my_driver::open::<u32>"),
        ("_RINvCs1_9my_driver4openKj10_E", "my_driver::open::<16>"),
        ("_RINvCs1_9my_driver4openAhj4_E", "my_driver::open::<[u8; 4]>"),
        ("_RNvMCs1_9my_driverINtB2_3BoxmE4open", "<my_driver::Box<u32>>::open"),
        ("_RNvXCs1_9my_driverNtB2_6DeviceNtB2_4File4open", None),
        ("_ZN4core9panicking9panic_fmt17h0123456789abcdefE", "core::panicking::panic_fmt"),
        (
            "_ZN53_$LT$my_driver..Device$u20$as$u20$my_driver..File$GT$4open17h0123456789abcdefE",
            None,
        ),
        ("_ZN4core9panicking9panic_fmtE", "_ZN4core9panicking9panic_fmtE"),  # C++
        ("_ZN9999core17h0123456789abcdefE", "_ZN9999core17h0123456789abcdefE"),
        ("my_driver_open", "my_driver_open"),
        ("_Rubbish", "_Rubbish"),
    ],
)
def test_a_mangled_name_is_a_path(symbol: str, path: str | None) -> None:
    assert demangle(symbol) == (path or "<my_driver::Device as my_driver::File>::open")


def test_a_name_that_would_fill_the_memory_stays_as_it_is() -> None:
    pairs = "".join(f"T{'B' + back + '_'}{'B' + back + '_'}E" for back in "012345678")
    symbol = f"_RINvC1a1b{pairs * 20}E"
    assert demangle(symbol) == symbol

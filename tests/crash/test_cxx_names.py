"""Names of C++ functions, which modules of vendors and old Rust have."""

import pytest

from kgym.crash.report import parse
from kgym.crash.report.demangle import demangle
from tests.crash.test_titles import kasan, registers


def test_a_cxx_function_is_named_as_its_source_names_it() -> None:
    report = parse(registers("divide error: 0000 [#1] SMP", "_ZN6vendor6Device5startEPKci"))
    assert report is not None
    assert report.title == "divide error in vendor::Device::start"
    assert report.frame == "vendor::Device::start"


def test_an_argument_of_a_template_is_part_of_the_name_and_its_number_is_not() -> None:
    report = parse(kasan("use-after-free", "_ZN6vendor4RingIjLi64EE3popEv"))
    assert report is not None
    assert report.title == "KASAN: use-after-free Read in vendor::Ring<unsigned int, NUM>::pop"


def test_a_cxx_function_that_is_never_to_blame_is_passed_over() -> None:
    report = parse(kasan("use-after-free", "_ZN6vendor6memcpyEPvPKvm"))
    assert report is not None
    assert report.title == "KASAN: use-after-free Read in my_driver_read"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z4openi", "open"),
        ("_ZL4openi", "open"),
        ("_ZSt4sortIPiEvT_S1_", "std::sort<int*>"),
        ("_ZNK6vendor6Device4peekEv", "vendor::Device::peek"),
        ("_ZN6vendor6DeviceC2Ev", "vendor::Device::Device"),
        ("_ZN6vendor6DeviceD0Ev", "vendor::Device::~Device"),
        ("_ZN6vendor6DeviceixEi", "vendor::Device::operator[]"),
        ("_ZN12_GLOBAL__N_14openEi", "(anonymous namespace)::open"),
        ("_ZNSt6vectorIN6vendor6DeviceEE4pushES1_", "std::vector<vendor::Device>::push"),
        ("_ZN6vendor3BoxINS0_IPKNS_6DeviceELi2EEELin1EE4openEi", None),
        ("_ZN4many3runIJiPcEEEvDpT_", "many::run<int, char*>"),
        ("_ZN5flags3runILb1ELm5EEEvv", "flags::run<true, 5ul>"),
        # Rust's first mangling
        ("_ZN4core9panicking9panic_fmt17h0123456789abcdefE", "core::panicking::panic_fmt"),
        # a local of a function, whose name hangs on the parameters
        ("_ZZ4openiE5count", "_ZZ4openiE5count"),
        ("_ZN6vendor", "_ZN6vendor"),
        ("_ZS9_", "_ZS9_"),
        ("_Zebra_stripes", "_Zebra_stripes"),
    ],
)
def test_a_mangled_name_is_read_without_parameters(symbol: str, name: str | None) -> None:
    nested = "vendor::Box<vendor::Box<vendor::Device const*, 2>, -1>::open"
    assert demangle(symbol) == (name or nested)


def test_a_name_that_would_fill_the_memory_stays_as_it_is() -> None:
    doubled = "".join(f"1aI{back}{back}E" for back in ("S_", *(f"S{n}_" for n in range(9))))
    symbol = f"_Z1a{doubled * 3}"
    assert len(demangle(symbol)) < 5000

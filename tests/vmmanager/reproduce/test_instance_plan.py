"""How long a boot may take."""

from kgym_vmmanager.reproduce.instance_plan import Boots


def test_a_boot_is_limited_by_ten_times_the_slowest_one_and_by_30_seconds_at_least() -> None:
    assert Boots().limit(180) == 180
    assert Boots([2.0]).limit(180) == 30
    boots = Boots([5.0])
    assert boots.limit(180) == 50
    boots.booted(30.0)
    assert boots.limit(180) == 180

"""How long a boot may take."""

import pytest

from kgym_vmmanager.reproduce.instance_plan import Boots


@pytest.mark.parametrize(
    ("own", "elsewhere", "limit"),
    [
        ([], None, 180),
        ([2.0], None, 30),
        ([5.0], 12.0, 50),
        ([5.0, 30.0], None, 180),
        ([], 2.0, 60),
        ([], 12.0, 120),
        ([], 30.0, 180),
    ],
)
def test_the_limit_of_a_boot(own: list[float], elsewhere: float | None, limit: float) -> None:
    boots = Boots(own[:1])
    boots.slowest_elsewhere = elsewhere
    for seconds in own[1:]:
        boots.booted(seconds)
    assert boots.limit(180) == limit
    boots.begin_anew()
    assert boots.limit(180) == 180

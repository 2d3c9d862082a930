"""Dumps that no worker can take: refused when they are asked for; nobody would ever take them."""

import pytest

from kgym.api.capabilities import Capabilities
from kgym.api.steps import Reproducer, ReproduceSpec, StepRef
from kgym.errors import UserError
from kgym_scheduler.queue.known_workers import check_dumps

HERE = Capabilities()
CLOUD = Capabilities(dumps=["kdump"])
PROGRAM = Reproducer(text="int main(void) { return 0; }")
ASKED = [ReproduceSpec(build=StepRef(step=0), reproducer=PROGRAM, dump="hypervisor")]


def test_a_dump_from_outside_is_refused_where_all_vms_are_in_a_cloud() -> None:
    with pytest.raises(UserError, match="kdump") as caught:
        check_dumps(ASKED, [CLOUD, CLOUD])
    assert caught.value.reason == "no_dump_method"


@pytest.mark.parametrize("live", [[], [CLOUD, HERE], [CLOUD, None]])
def test_it_waits_where_somebody_takes_it_or_nothing_is_known(
    live: list[Capabilities | None],
) -> None:
    check_dumps(ASKED, live)


def test_what_asks_for_none_is_done_anywhere() -> None:
    check_dumps([ReproduceSpec(build=StepRef(step=0), reproducer=PROGRAM)], [CLOUD])

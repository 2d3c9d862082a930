"""Sessions that do one piece of work in a booted guest, in place of the reproducer."""

import time
from abc import ABC, abstractmethod

from kgym.api.steps import InstanceOutcome
from kgym.bugs.run_ends import End
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.vm.instance_ending import InstanceEnded, InstanceEnding


class GuestSession(ABC):
    """A session that works once; `seconds` is how long it took."""

    runs = 1
    # Begins the detail of a guest that is lost.
    lost = "the guest does not answer"

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ends: dict[End, int] = {}

    @abstractmethod
    async def work(self, ssh: Ssh) -> None:
        """Do it all; raises ConnectionLost or TimeoutError if the guest is lost."""

    async def run(self, ssh: Ssh, *_: object) -> InstanceEnding:
        """Work to the end; raises InstanceEnded if the guest is lost: nobody reconnects."""
        begin = time.monotonic()
        try:
            await self.work(ssh)
        except (ConnectionLost, TimeoutError) as error:
            raise InstanceEnded(InstanceOutcome.SSH_LOST, f"{self.lost}: {error}") from error
        finally:
            self.seconds = time.monotonic() - begin
        return InstanceEnding(InstanceOutcome.SURVIVED)

"""What scaling comes to on a made-up day: dollars and waiting, against hosts that always run.

Half of the jobs come in the rhythm of people, half in four sweeps; builds take 20 s, VMs 90 s in
the median (`tests/hosts/recorded_days.py`). The simulation is the product's (`kgym_hosts/scaling`).

    ./run bench scaling --json
"""

import argparse
import json
import time
from dataclasses import replace
from typing import Any

from kgym_hosts.scaling.decisions import Limits
from kgym_hosts.scaling.simulation import Simulation
from tests.hosts.recorded_days import DAY, day, farm


def days(jobs: int) -> dict[str, Limits]:
    """Return the limits that are compared."""
    base = farm(1000)
    return {
        f"{jobs} jobs": base,
        "hosts kept for a minute": replace(base, idle_seconds=60.0),
        "hosts kept for an hour": replace(base, idle_seconds=3600.0),
        "steps may wait 10 minutes": replace(base, wait_seconds=600.0),
        "40 dollars an hour at most": replace(base, most_dollars_per_hour=40.0),
    }


def main() -> None:
    """Simulate a day with each of the limits, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    recording = day(chosen.jobs)
    answer: dict[str, Any] = {}
    for name, limits in days(chosen.jobs).items():
        began = time.process_time()
        outcome = Simulation(limits).run(recording)
        answer[name] = {**dict(outcome), "cpu_seconds": round(time.process_time() - began, 2)}
    always = sum(pool.most * (pool.dollars_per_hour or 0) for pool in farm(1000).pools)
    answer["always_dollars"] = round(always * DAY / 3600, 2)
    if chosen.json:
        print(json.dumps(answer))
        return
    for name, outcome in answer.items():
        if isinstance(outcome, dict):
            waits = f"{outcome['wait_median_seconds']:6.1f} s (median)"
            late = f"{outcome['wait_95_seconds']:7.1f} s (95 %)"
            hosts = f"{outcome['most_hosts']:4} hosts at most"
            print(f"{name:28}  ${outcome['dollars']:8.2f}  waits {waits}, {late}  {hosts}")
    print(f"{'1,000 hosts, always there':28}  ${answer['always_dollars']:8.2f}")


if __name__ == "__main__":
    main()

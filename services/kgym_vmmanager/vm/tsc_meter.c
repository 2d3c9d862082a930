/*
 * Prints the rate of the host's time stamp counter in kHz. An emulated guest sees that counter.
 * While the host is busy, the guest measures a wrong rate (once by a factor of 2.8); with the
 * rate on its command line, its clock is right.
 */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct point {
	unsigned long long counter, time;
};

static unsigned long long nanoseconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC_RAW, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

/* Reads both clocks at the same moment: the fastest of many readings. */
static struct point read_point(void)
{
	unsigned long long before, after, time, shortest = ~0ULL;
	struct point best = { 0, 0 };
	int i;

	for (i = 0; i < 100; i++) {
		before = __rdtsc();
		time = nanoseconds();
		after = __rdtsc();
		if (after - before >= shortest)
			continue;
		shortest = after - before;
		best = (struct point){ before + shortest / 2, time };
	}
	return best;
}

int main(void)
{
	struct timespec nap = { .tv_nsec = 100000000 };
	struct point from = read_point(), to;

	nanosleep(&nap, NULL);
	to = read_point();
	printf("%llu\n", (to.counter - from.counter) * 1000000 / (to.time - from.time));
	return 0;
}

/* Part of fork.c, as kernel/sched/fair.c once was of core.c. */
#include <linux/syscalls.h>

SYSCALL_DEFINE1(yield, int, times)
{
	long slept = 0;

	while (times-- > 0)
		slept += PARENT_BOUND;
	return slept;
}

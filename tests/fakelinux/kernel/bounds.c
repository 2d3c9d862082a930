#include <linux/limits.h>

void bounds(void)
{
	asm volatile("->PARENT_BOUND %c0" : : "i"(PARENT_MAX));
}

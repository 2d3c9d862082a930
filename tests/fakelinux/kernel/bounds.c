#include <linux/limits.h>

void bounds(void)
{
	asm volatile("\n.ascii \"->PARENT_BOUND %c0\"" : : "i"(PARENT_MAX));
}

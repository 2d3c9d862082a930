#include <linux/kernel.h>

#define WATCH_TYPE__NR 2

static unsigned char filter[8];

int watch_filter(int type)
{
	/* Ignore any unknown types */
	if (type >= WATCH_TYPE__NR)
		return -1;
	filter[type / 8] |= 1 << (type % 8);
	return 0;
}

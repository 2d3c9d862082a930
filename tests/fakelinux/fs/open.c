#include <linux/kernel.h>

int open_file(const char *name)
{
	if (!name)
		return -1;
	return (int)length(name);
}

#include <linux/kernel.h>

int fork_one(int parent)
{
	return parent + 1;
}

int main(void)
{
	return watch_filter(3) + open_file("init") + fork_one(0);
}

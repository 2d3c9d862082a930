#include <linux/fork.h>
#include <stdio.h>

int main(void)
{
	printf("ok 1 %s\n", fork_header);
	return 0;
}

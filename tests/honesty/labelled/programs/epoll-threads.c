/* A program with threads is refused circles, and closes its files: they must be gone then. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define TIMES 1500

static char stack[65536];

static _Noreturn int idle(void *unused)
{
	(void)unused;
	for (;;)
		pause();
}

static long files(void)
{
	long count = -1;
	FILE *file = fopen("/proc/sys/fs/file-nr", "r");

	if (file) {
		if (fscanf(file, "%ld", &count) != 1)
			count = -1;
		fclose(file);
	}
	return count;
}

int main(void)
{
	/* Shares the table of files, which makes each call take references. */
	int child = clone(idle, stack + sizeof(stack), CLONE_VM | CLONE_FILES | CLONE_FS, NULL), i;
	struct epoll_event event = { .events = EPOLLIN };
	long before, after;

	if (child < 0) {
		perror("clone");
		return 1;
	}
	before = files();
	for (i = 0; i < TIMES; i++) {
		int a = epoll_create1(0), b = epoll_create1(0);

		if (a < 0 || b < 0 || epoll_ctl(a, EPOLL_CTL_ADD, b, &event)) {
			perror("epoll");
			break;
		}
		epoll_ctl(b, EPOLL_CTL_ADD, a, &event);
		close(a);
		close(b);
	}
	usleep(300000);
	after = files();
	kill(child, 9);
	if (i < TIMES || after - before > TIMES / 2) {
		printf("WRONG files: %ld, then %ld\n", before, after);
		return 3;
	}
	return 0;
}

/* Circles of two to five epoll descriptors, closed in several ways, and among other descriptors. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

static int watch(int epoll, int target, uint32_t events)
{
	struct epoll_event event = { .events = events };

	return epoll_ctl(epoll, EPOLL_CTL_ADD, target, &event);
}

/* Close a circle; `others` are watched beside its members. Return 0 if it is refused by ELOOP. */
static int close_circle(int length, uint32_t events, int others)
{
	int members[8], earlier[8], i, other;
	int ready = eventfd(1, 0);

	/* What is watched is sorted by address: some others are older than the members, some younger. */
	for (other = 0; other < others / 2; other++)
		earlier[other] = epoll_create1(0);
	for (i = 0; i < length; i++)
		members[i] = epoll_create1(0);
	if (watch(members[length - 1], ready, EPOLLIN))
		return 1;
	for (i = length - 2; i >= 0; i--) {
		for (other = 0; other < others / 2; other++)
			watch(members[i], earlier[other], EPOLLIN);
		if (watch(members[i], members[i + 1], EPOLLIN | EPOLLOUT))
			return 1;
		for (other = 0; other < others - others / 2; other++)
			watch(members[i], epoll_create1(0), EPOLLIN);
	}
	if (!watch(members[length - 1], members[0], events))
		return 3;
	return errno == ELOOP ? 0 : 3;
}

static void try(int length, uint32_t events, int others)
{
	pid_t child = fork();
	int status = 3, i;

	if (!child)
		_exit(close_circle(length, events, others));
	for (i = 0; i < 50; i++) {
		if (waitpid(child, &status, WNOHANG) == child) {
			if (status) {
				printf("WRONG circle of %d, events %#x, %d others\n", length, events, others);
				exit(WEXITSTATUS(status));
			}
			return;
		}
		usleep(100000);
	}
	printf("WRONG hangs: circle of %d, events %#x, %d others\n", length, events, others);
	exit(3);
}

int main(void)
{
	int length, i;

	for (length = 2; length <= 5; length++) {
		try(length, EPOLLIN, 0);
		try(length, EPOLLOUT, 0);
		try(length, EPOLLIN | EPOLLET, 0);
	}
	for (i = 0; i < 4; i++)
		try(2, EPOLLIN, 8);
	return 0;
}

/* Chains of epoll descriptors work down to the limit; beyond it, and in circles, ELOOP refuses. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* EP_MAX_NESTS of fs/eventpoll.c: a chain has one descriptor more. */
#define LONGEST 5

static int watch(int epoll, int target)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(epoll, EPOLL_CTL_ADD, target, &event);
}

static void require(int holds, const char *what)
{
	if (!holds) {
		printf("WRONG %s (errno %d)\n", what, errno);
		exit(3);
	}
}

int main(void)
{
	int chain[LONGEST + 1], i, ready = eventfd(1, 0), a, b;
	struct epoll_event event;

	alarm(20);
	for (i = 0; i <= LONGEST; i++)
		chain[i] = epoll_create1(0);
	require(!watch(chain[0], ready), "watching a file");
	for (i = 1; i < LONGEST; i++)
		require(!watch(chain[i], chain[i - 1]), "a chain within the limit");
	require(epoll_wait(chain[LONGEST - 1], &event, 1, 1000) == 1, "the event comes through the chain");
	errno = 0;
	require(watch(chain[LONGEST], chain[LONGEST - 1]) == -1 && errno == ELOOP, "one too many");

	/* Two paths to the same descriptor are no circle. */
	a = epoll_create1(0);
	b = epoll_create1(0);
	require(!watch(a, chain[0]) && !watch(b, chain[0]) && !watch(b, a), "two paths");

	a = epoll_create1(0);
	b = epoll_create1(0);
	require(!watch(a, b), "one direction");
	errno = 0;
	require(watch(b, a) == -1 && errno == ELOOP, "a circle of two");
	require(epoll_ctl(b, EPOLL_CTL_DEL, a, &event) == -1 && errno == ENOENT, "nothing is watched");
	return 0;
}

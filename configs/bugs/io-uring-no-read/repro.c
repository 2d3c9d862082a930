/*
 * io_uring reads from a file that has no way to be read: an epoll descriptor is open for reading,
 * but its operations have neither read_iter nor read.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	static struct io_uring_params params;
	static char buffer[8];
	struct io_uring_sqe *entry;
	char *queue;
	int ring = syscall(SYS_io_uring_setup, 1, &params);
	int epoll = epoll_create1(0);

	/* Non-blocking, so that the read runs in this task and not in a worker. */
	if (ring < 0 || epoll < 0 || fcntl(epoll, F_SETFL, O_NONBLOCK)) {
		perror("descriptors");
		return 1;
	}
	queue = mmap(NULL, params.sq_off.array + sizeof(uint32_t), PROT_READ | PROT_WRITE,
		     MAP_SHARED, ring, IORING_OFF_SQ_RING);
	entry = mmap(NULL, sizeof(*entry), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		     IORING_OFF_SQES);
	if (queue == MAP_FAILED || entry == MAP_FAILED) {
		perror("rings");
		return 1;
	}
	*entry = (struct io_uring_sqe){
		.opcode = IORING_OP_READ,
		.fd = epoll,
		.addr = (uintptr_t)buffer,
		.len = sizeof(buffer),
	};
	*(uint32_t *)(queue + params.sq_off.array) = 0;
	__atomic_store_n((uint32_t *)(queue + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	/* A fixed kernel completes the read with EINVAL. */
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) {
		perror("submission");
		return 1;
	}
	return 0;
}

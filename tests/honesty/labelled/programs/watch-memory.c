/* Filters are set again and again, with and without known types: memory does not grow. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define NOTIFICATION_PIPE O_EXCL
#define SET_SIZE _IO('W', 0x60)
#define SET_FILTER _IO('W', 0x61)
#define TIMES 120000
/* More than what KASAN keeps of freed memory, less than a third of what a leak takes. */
#define MOST_KIB 48000

struct filter {
	uint32_t count, reserved;
	struct {
		uint32_t type, info_filter, info_mask, subtypes[8];
	} each[16];
};

/* KiB of slabs that cannot be reclaimed. */
static long slabs(void)
{
	char line[200];
	long size = 0;
	FILE *file = fopen("/proc/meminfo", "r");

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "SUnreclaim: %ld", &size);
	if (file)
		fclose(file);
	return size;
}

int main(void)
{
	static struct filter filter = { .count = 16 };
	int ends[2], round, i;
	long before, after;

	if (pipe2(ends, NOTIFICATION_PIPE) || ioctl(ends[0], SET_SIZE, 1)) {
		perror("notification pipe");
		return 1;
	}
	for (round = 0; round < 2; round++) {
		for (i = 0; i < 16; i++)
			filter.each[i].type = round ? 77 : 1;
		before = slabs();
		for (i = 0; i < TIMES; i++) {
			if (ioctl(ends[0], SET_FILTER, &filter)) {
				perror("filter");
				return 1;
			}
			if (i % 5000 == 4999) {
				usleep(50000); /* what is freed after a grace period */
				after = slabs();
				if (after - before > MOST_KIB + 20000) {
					printf("WRONG slabs: %ld KiB, then %ld\n", before, after);
					return 3;
				}
			}
		}
		usleep(500000);
		after = slabs();
		if (after - before > MOST_KIB) {
			printf("WRONG slabs: %ld KiB, then %ld\n", before, after);
			return 3;
		}
	}
	return 0;
}

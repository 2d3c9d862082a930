/* Open files that were refused as the source of a mount are closed for good afterwards. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SET_FD 5
#define TIMES 1500

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
	long before = files(), after;
	int i;

	for (i = 0; i < TIMES; i++) {
		int file = open("/proc/self/exe", O_RDONLY), context = syscall(SYS_fsopen, "tmpfs", 0);

		if (file < 0 || context < 0) {
			perror("open or fsopen");
			break;
		}
		syscall(SYS_fsconfig, context, SET_FD, "source", NULL, file);
		close(context);
		close(file);
	}
	usleep(300000);
	after = files();
	if (i < TIMES || after - before > TIMES / 2) {
		printf("WRONG files: %ld, then %ld\n", before, after);
		return 3;
	}
	return 0;
}

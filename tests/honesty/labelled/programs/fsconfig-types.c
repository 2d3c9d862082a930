/* The source of a mount as a value of every type, for two file systems: only strings are one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* enum fsconfig_command in include/uapi/linux/mount.h */
enum { SET_FLAG, SET_STRING, SET_BINARY, SET_PATH, SET_PATH_EMPTY, SET_FD };

static void refused(const char *type, int command, const void *value, int number)
{
	int context = syscall(SYS_fsopen, type, 0);
	long result;

	if (context < 0)
		return; /* not in this kernel */
	errno = 0;
	result = syscall(SYS_fsconfig, context, command, "source", value, number);
	if (result != -1 || errno != EINVAL) {
		printf("WRONG %s takes command %d: %ld, errno %d\n", type, command, result, errno);
		exit(3);
	}
	close(context);
}

int main(void)
{
	static const char *types[] = { "tmpfs", "ramfs" };
	char byte;
	int i, file;

	for (i = 0; i < 2; i++) {
		file = open("/proc/self/exe", O_RDONLY);
		if (file < 0) {
			perror("open");
			return 1;
		}
		refused(types[i], SET_PATH, "/a/path/that/is/taken/for/a/string", AT_FDCWD);
		refused(types[i], SET_PATH_EMPTY, "", file);
		refused(types[i], SET_FD, NULL, file);
		refused(types[i], SET_BINARY, "binary", 7);
		refused(types[i], SET_FLAG, NULL, 0);
		if (read(file, &byte, 1) != 1) {
			puts("WRONG the file cannot be read any more");
			return 3;
		}
		close(file);
	}
	return 0;
}

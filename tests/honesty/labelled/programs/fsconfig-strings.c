/* A string is accepted as the source of a mount, once, and shown by /proc/self/mountinfo. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SET_STRING 1
#define CREATE 6
#define PLACE "/tmp/kgym-source"

static void require(int holds, const char *what)
{
	if (!holds) {
		printf("WRONG %s (errno %d)\n", what, errno);
		exit(3);
	}
}

static int shown(void)
{
	char line[1000];
	int found = 0;
	FILE *mounts = fopen("/proc/self/mountinfo", "r");

	while (mounts && fgets(line, sizeof(line), mounts))
		found |= strstr(line, PLACE) && strstr(line, " kgym-wanted-source ");
	if (mounts)
		fclose(mounts);
	return found;
}

int main(void)
{
	int context = syscall(SYS_fsopen, "tmpfs", 0), mounted;

	mkdir("/tmp", 0777);
	mkdir(PLACE, 0777);
	if (context < 0) {
		perror("fsopen");
		return 1;
	}
	require(!syscall(SYS_fsconfig, context, SET_STRING, "source", "kgym-wanted-source", 0),
		"a string");
	errno = 0;
	require(syscall(SYS_fsconfig, context, SET_STRING, "source", "second", 0) == -1 && errno == EINVAL,
		"a second source");
	require(!syscall(SYS_fsconfig, context, CREATE, NULL, NULL, 0), "creating");
	mounted = syscall(SYS_fsmount, context, 0, 0);
	require(mounted >= 0, "mounting");
	require(!syscall(SYS_move_mount, mounted, "", AT_FDCWD, PLACE, 4), "moving the mount");
	require(shown(), "the mount shows its source");
	close(mounted);
	close(context);
	umount2(PLACE, MNT_DETACH);
	return 0;
}

/*
 * Starts another kernel in the place of the one that runs.
 *
 *     start KERNEL INITRD COMMAND_LINE
 *
 * Returns only if it is not taken; the reason is on stderr. Source: kexec_file_load(2).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words)
{
	int kernel, initrd;

	if (count != 4)
		return 2;
	kernel = open(words[1], O_RDONLY | O_CLOEXEC);
	initrd = open(words[2], O_RDONLY | O_CLOEXEC);
	if (kernel >= 0 && initrd >= 0 &&
	    syscall(SYS_kexec_file_load, kernel, initrd, strlen(words[3]) + 1, words[3], 0UL) == 0) {
		sync();
		syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2,
			LINUX_REBOOT_CMD_KEXEC, NULL);
	}
	fprintf(stderr, "%s\n", strerror(errno));
	return 1;
}

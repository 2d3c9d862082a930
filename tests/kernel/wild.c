
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>
int main(void)
{
	if (access("/sys/module", F_OK) == 0)
		mount("none", "/sys", "tmpfs", 0, 0);
	return write(open("/proc/sys/fs/mount-max", O_WRONLY), "1", 1) != 1;
}

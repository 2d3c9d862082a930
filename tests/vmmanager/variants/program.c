/* Calls that harm nothing, whatever their arguments become. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	char bytes[64];

	for (int i = 0; i < 5; i++) {
		lseek(fd, 100 * i, SEEK_SET);
		pread(fd, bytes, sizeof(bytes), 1000 * i);
		syscall(SYS_getpriority, 0, 0);
	}
	close(fd);
	return 0;
}

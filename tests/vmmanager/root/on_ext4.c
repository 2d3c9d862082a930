
#include <stdio.h>
#include <sys/vfs.h>
#include <unistd.h>

int main(void)
{
    struct statfs here;

    if (statfs(".", &here) < 0 || here.f_type != 0xEF53) /* EXT4_SUPER_MAGIC */
        return 1;
    if (access("/proc/self/stat", R_OK) < 0 || access("/etc/passwd", W_OK) < 0)
        return 2;
    sleep(2);
    return 0;
}

/* The first packet socket makes the kernel load the module. */
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    int fd = socket(AF_PACKET, SOCK_DGRAM, 0);

    sleep(1);
    return fd < 0;
}

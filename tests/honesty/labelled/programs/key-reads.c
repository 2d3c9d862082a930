/* Keys of several states are read with and without a buffer, and what they hold is compared. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESS_KEYRING -2
#define KEYCTL_REVOKE 3
#define KEYCTL_SETPERM 5
#define KEYCTL_READ 11
/* By who possesses the key: all but reading. */
#define NO_READ 0x3d000000

static int32_t negative(void)
{
	int32_t serials[64];
	long bytes;
	static int number;
	char name[32];

	snprintf(name, sizeof(name), "negative:%d", number++);
	syscall(SYS_keyctl, KEYCTL_REVOKE, PROCESS_KEYRING);
	if (syscall(SYS_request_key, "user", name, "", PROCESS_KEYRING) != -1) {
		fputs("a helper made the key\n", stderr);
		exit(1);
	}
	bytes = syscall(SYS_keyctl, KEYCTL_READ, PROCESS_KEYRING, serials, sizeof(serials));
	if (bytes < 4) {
		perror("no negative key");
		exit(1);
	}
	return serials[0];
}

static void expect(const char *what, int32_t key, void *buffer, size_t size, long wanted)
{
	long result = syscall(SYS_keyctl, KEYCTL_READ, key, buffer, size);

	if (result < 0)
		result = -errno;
	if (result != wanted) {
		printf("WRONG %s: %ld, not %ld\n", what, result, wanted);
		exit(3);
	}
}

static int uses(int32_t key)
{
	char line[300];
	unsigned int serial;
	int count = -1, each;
	FILE *keys = fopen("/proc/keys", "r");

	while (keys && fgets(line, sizeof(line), keys))
		if (sscanf(line, "%x %*s %d", &serial, &each) == 2 && serial == (uint32_t)key)
			count = each;
	if (keys)
		fclose(keys);
	return count;
}

static int checks(void)
{
	static char payload[8192];
	int32_t valid = syscall(SYS_add_key, "user", "valid", "hello", 5, -3), key;
	int i, before;

	if (valid < 0) {
		perror("add_key");
		return 1;
	}
	expect("a valid key", valid, payload, sizeof(payload), 5);
	if (memcmp(payload, "hello", 5)) {
		puts("WRONG the payload was not read");
		return 3;
	}
	expect("the length of a valid key", valid, NULL, 0, 5);
	expect("a valid key into little room", valid, payload, 3, 5);

	key = negative();
	expect("a negative key", key, payload, 64, -ENOKEY);
	expect("a negative key into much room", key, payload, sizeof(payload), -ENOKEY);
	expect("the length of a negative key", key, NULL, 0, -ENOKEY);
	before = uses(key);
	for (i = 0; i < 100; i++)
		expect("a negative key", key, payload, 64, -ENOKEY);
	if (before >= 0 && uses(key) >= before + 50) {
		printf("WRONG references: %d, then %d\n", before, uses(key));
		return 3;
	}
	if (!syscall(SYS_keyctl, KEYCTL_SETPERM, key, NO_READ))
		expect("a negative key without permission", key, payload, 64, -ENOKEY);
	syscall(SYS_keyctl, KEYCTL_REVOKE, key);
	return 0;
}

int main(void)
{
	pid_t child = fork();
	int i, status;

	if (!child)
		exit(checks());
	for (i = 0; i < 200; i++) {
		if (waitpid(child, &status, WNOHANG) == child)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		usleep(100000);
	}
	puts("WRONG a lock is never released");
	return 3;
}

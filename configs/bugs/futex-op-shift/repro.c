/*
 * FUTEX_WAKE_OP with an operand that is to be taken as a power of two, and is negative: the kernel
 * shifts by -1.
 */
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	static uint32_t first, second;
	uint32_t operation = FUTEX_OP((FUTEX_OP_OPARG_SHIFT | FUTEX_OP_SET), -1,
				      FUTEX_OP_CMP_EQ, 0);

	/* A fixed kernel masks the operand, and goes on. */
	if (syscall(SYS_futex, &first, FUTEX_WAKE_OP, 1, 1L, &second, operation) < 0) {
		perror("futex");
		return 1;
	}
	return 0;
}

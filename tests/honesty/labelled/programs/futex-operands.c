/* FUTEX_WAKE_OP with every kind of operand, in each operation and comparison. */
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint32_t after(int op, int operand, uint32_t word)
{
	uint32_t bit = 1u << (operand & 31);

	switch (op) {
	case FUTEX_OP_SET:
		return bit;
	case FUTEX_OP_ADD:
		return word + bit;
	case FUTEX_OP_OR:
		return word | bit;
	case FUTEX_OP_ANDN:
		return word & ~bit;
	default:
		return word ^ bit;
	}
}

int main(void)
{
	static const int operands[] = { -1, -2, -31, -32, -33, -2048, 32, 33, 48, 63, 64, 2047 };
	static uint32_t first, second;
	int i, op, compare;

	for (i = 0; i < 32 + 12; i++)
		for (op = FUTEX_OP_SET; op <= FUTEX_OP_XOR; op++)
			for (compare = FUTEX_OP_CMP_EQ; compare <= FUTEX_OP_CMP_GE; compare++) {
				int operand = i < 32 ? i : operands[i - 32];
				uint32_t encoded = FUTEX_OP((FUTEX_OP_OPARG_SHIFT | op), operand, compare, 0);
				long woken;

				second = 0xf0f0f0f0;
				woken = syscall(SYS_futex, &first, FUTEX_WAKE_OP, 1, 1L, &second, encoded);
				if (woken != 0 || second != after(op, operand, 0xf0f0f0f0)) {
					printf("WRONG operand %d of operation %d: %ld, %#x\n", operand, op,
					       woken, second);
					return 3;
				}
			}
	return 0;
}

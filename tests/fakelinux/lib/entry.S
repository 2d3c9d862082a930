#include <linux/entry.h>

	.text
	.globl entry
	.type entry, @function
entry:
	mov $ENTRY_VALUE, %eax
	ret
	.size entry, . - entry
	.section .note.GNU-stack, "", @progbits

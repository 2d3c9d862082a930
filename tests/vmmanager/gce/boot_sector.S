# The disk of a VM that has no kernel: it says that the helper begins, and then does as the byte
# behind its code says: 0 waits for ever, 1 resets the machine.
	.code16
	.globl _start
_start:
	xor	%ax, %ax
	mov	%ax, %ds
	mov	$words, %si
next:	lodsb
	test	%al, %al
	jz	said
	mov	$0x3f8, %dx
	out	%al, %dx
	jmp	next
said:	cmpb	$1, action
	jne	rest
	mov	$0xfe, %al
	out	%al, $0x64
rest:	hlt
	jmp	rest
words:	.asciz	"kgym: helper begins\r\n"
	.org	508
action:	.byte	0
	.org	510
	.word	0xaa55

# The disk of a VM that has no kernel: it says that the machine begins, and then does as the byte
# behind its code says: 0 waits for ever, 1 resets the machine, 2 says that the helper starts no
# such kernel, 3 that it has failed.
	.code16
	.globl _start
_start:
	xor	%ax, %ax
	mov	%ax, %ds
	mov	%ax, %ss
	mov	$0x7c00, %sp
	mov	$begins, %si
	call	say
	cmpb	$2, action
	je	refuses
	cmpb	$3, action
	je	fails
	cmpb	$1, action
	jne	rest
	mov	$0xfe, %al
	out	%al, $0x64
refuses: mov	$refused, %si
	call	say
	jmp	rest
fails:	mov	$failed, %si
	call	say
rest:	hlt
	jmp	rest
say:	lodsb
	test	%al, %al
	jz	said
	mov	$0x3f8, %dx
	out	%al, %dx
	jmp	say
said:	ret
begins:	.asciz	"kgym: machine begins\r\n"
refused: .asciz	"kgym: helper refused: Exec format error\r\n"
failed:	.asciz	"kgym: helper failed: no metadata\r\n"
	.org	508
action:	.byte	0
	.org	510
	.word	0xaa55

/*
 * A boot sector that proves an accelerator: it enters long mode, fills and sums 32 MiB,
 * and prints the answer (PROOF in accelerator.py) on the first serial port.
 */
#define PORT 0x3f8
#define TABLES 0x10000
#define START 0x1000000
#define SIZE 0x2000000

	.code16
	.globl _start
_start:
	cli
	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %ss
	movw	$0x7c00, %sp
	movw	$(TABLES >> 4), %ax
	movw	%ax, %es
	xorw	%di, %di
	xorl	%eax, %eax
	movl	$0x3000, %ecx
	rep stosb
	/* one table of each level; the last maps 1 GiB in pages of 2 MiB */
	movl	$(TABLES + 0x1003), %es:0
	movl	$(TABLES + 0x2003), %es:0x1000
	movw	$0x2000, %di
	movl	$0x83, %eax
1:	movl	%eax, %es:(%di)
	addl	$0x200000, %eax
	addw	$8, %di
	cmpw	$0x3000, %di
	jne	1b
	movl	$0x20, %eax		/* CR4.PAE */
	movl	%eax, %cr4
	movl	$TABLES, %eax
	movl	%eax, %cr3
	movl	$0xc0000080, %ecx	/* EFER.LME */
	rdmsr
	orl	$0x100, %eax
	wrmsr
	lgdtl	table
	movl	$0x80000001, %eax	/* CR0.PG, CR0.PE */
	movl	%eax, %cr0
	ljmpl	$8, $long

	.code64
long:
	movl	$START, %edi
	movl	$(SIZE / 8), %ecx
	xorl	%eax, %eax
1:	movq	%rax, (%rdi)
	incq	%rax
	addq	$8, %rdi
	loop	1b
	movl	$START, %esi
	movl	$(SIZE / 8), %ecx
	xorl	%ebx, %ebx
1:	addq	(%rsi), %rbx
	addq	$8, %rsi
	loop	1b
	movw	$PORT, %dx
	movl	$16, %ecx
1:	rolq	$4, %rbx
	movl	%ebx, %eax
	andl	$15, %eax
	addl	$'a', %eax
	outb	%al, %dx
	loop	1b
	movb	$'\n', %al
	outb	%al, %dx
1:	hlt
	jmp	1b

	.balign	8
entries:
	.quad	0
	.quad	0x00209a0000000000	/* 64-bit code */
table:
	.word	table - entries - 1
	.long	entries

	.org	510
	.word	0xaa55

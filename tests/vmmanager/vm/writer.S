
.code16
.globl _start
_start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %ss
    mov $0x7c00, %sp
    sti
1:  mov $0x4300, %ax
    mov $packet, %si
    mov $0x80, %dl
    int $0x13
    addl $127, at
    mov $0x3f8, %dx
    mov $'.', %al
    out %al, (%dx)
    jmp 1b
packet:
    .byte 16, 0
    .word 127, 0, 0x1000
at: .long 1, 0
.org 510
.word 0xaa55

/*
 * Loads the capture kernel into the memory that `crashkernel=` has set aside, so that a panic
 * starts it: what `kexec -p` does, for our own kernel and initrd.
 *
 *     kexec KERNEL INITRD COMMAND_LINE
 *
 * Exit status: 0 loaded, 3 no memory is set aside, 4 the kernel refuses, 1 anything else; the
 * reason is on stderr.
 *
 * Sources: kexec_load(2); the 64-bit boot protocol and struct boot_params in the kernel's
 * Documentation/x86/boot.rst and zero-page.rst; what fs/proc/vmcore.c expects of the ELF headers
 * at `elfcorehdr=`. The low 1 MiB is left out of the dump: the kernel uses none of it when memory
 * is set aside (arch/x86/realmode/init.c), and the capture kernel does.
 *
 * From the end of the reserved memory, downward: initrd, then one segment with the way into the
 * kernel, boot parameters, command line and ELF headers; the capture kernel is told that its
 * memory ends below. The kernel stands at the beginning.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	NO_RESERVATION = 3,
	REFUSED = 4,
	PAGE = 4096,
	LOW = 1 << 20,
	HEADERS = 4, /* pages of ELF headers */
	RANGES = 64,
	/* struct boot_params, offsets */
	E820_COUNT = 0x1e8,
	SETUP = 0x1f1,
	SETUP_END = 0x201,
	LOADER = 0x210,
	RAMDISK = 0x218,
	RAMDISK_SIZE = 0x21c,
	COMMAND_LINE = 0x228,
	ALIGNMENT = 0x230,
	INIT_SIZE = 0x260,
	E820_TABLE = 0x2d0,
	ENTRY_64 = 0x200,
	USABLE = 1,
	RESERVED = 2,
	ON_CRASH_X86_64 = 1 | 62 << 16,
};

struct range {
	uint64_t start, end; /* the last byte */
};

struct segment { /* struct kexec_segment */
	const void *data;
	size_t size;
	uint64_t place;
	size_t room;
};

struct file {
	unsigned char *data;
	size_t size;
};

/* The segment of small things; it is handed over as it lies here. */
static struct small {
	unsigned char code[PAGE], parameters[PAGE], command_line[PAGE], headers[HEADERS * PAGE];
} small;

static struct range memory[RANGES], crash, low;
static int ranges;

__attribute__((noreturn, format(printf, 2, 3))) static void fail(int status, const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vfprintf(stderr, format, values);
	va_end(values);
	fputc('\n', stderr);
	exit(status);
}

static uint64_t rounded(uint64_t value, uint64_t to)
{
	return (value + to - 1) / to * to;
}

static struct file read_file(const char *path)
{
	struct file file = { NULL, 0 };
	struct stat status;
	ssize_t size;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &status) < 0 || !(file.data = malloc(status.st_size + 1)))
		fail(1, "%s: %s", path, strerror(errno));
	while ((size = read(fd, file.data + file.size, status.st_size - file.size)) > 0)
		file.size += size;
	close(fd);
	if ((off_t)file.size != status.st_size)
		fail(1, "%s: it cannot be read", path);
	return file;
}

/* Reads `format`, with one or two numbers, out of a small file; returns how many there are. */
static int read_numbers(const char *path, const char *format, uint64_t *one, uint64_t *other)
{
	FILE *file = fopen(path, "r");
	int found = file ? fscanf(file, format, one, other) : 0;

	if (file)
		fclose(file);
	return found;
}

/* The memory that there is, less what is set aside, from /proc/iomem (kernel/resource.c). */
static void read_memory(void)
{
	FILE *file = fopen("/proc/iomem", "r");
	struct range range;
	char line[256], name[64];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, " %lx-%lx : %63[^\n]", &range.start, &range.end, name) != 3)
			continue;
		if (strcmp(name, "System RAM") == 0 && range.end < LOW) {
			/* Of several, the largest: the capture kernel's way into real mode has to fit. */
			if (range.end - range.start > low.end - low.start)
				low = range;
		} else if (strcmp(name, "System RAM") == 0 && ranges < RANGES - 1)
			memory[ranges++] = range;
		if (strcmp(name, "Crash kernel") == 0 && range.end > crash.end)
			crash = range; /* of two, the higher one is the large one */
	}
	if (file)
		fclose(file);
	if (crash.end == 0)
		fail(NO_RESERVATION, "the kernel has set no memory aside (crashkernel=)");
	for (int i = 0; i < ranges; i++) {
		if (memory[i].start < LOW)
			memory[i].start = LOW;
		if (crash.start < memory[i].start || crash.end > memory[i].end)
			continue;
		memory[ranges++] = (struct range){ crash.end + 1, memory[i].end };
		memory[i].end = crash.start - 1;
		break;
	}
}

/* Where the kernel maps physical memory: the offset from /proc/kcore, or the usual one. */
static uint64_t page_offset(void)
{
	uint64_t offset = 0xffff888000000000;
	int fd = open("/proc/kcore", O_RDONLY | O_CLOEXEC);
	Elf64_Ehdr header;
	Elf64_Phdr part;

	if (fd < 0)
		return offset;
	if (read(fd, &header, sizeof(header)) == sizeof(header))
		for (int i = 0; i < header.e_phnum; i++) {
			off_t at = header.e_phoff + i * sizeof(part);

			if (pread(fd, &part, sizeof(part), at) != sizeof(part))
				break;
			if (part.p_type == PT_LOAD && part.p_paddr < part.p_vaddr &&
			    part.p_vaddr < 0xffffffff80000000) {
				offset = part.p_vaddr - part.p_paddr;
				break;
			}
		}
	close(fd);
	return offset;
}

static void add_note(Elf64_Ehdr *header, uint64_t place, uint64_t size)
{
	Elf64_Phdr *part = (Elf64_Phdr *)(header + 1) + header->e_phnum++;

	*part = (Elf64_Phdr){ .p_type = PT_NOTE, .p_offset = place, .p_paddr = place };
	part->p_filesz = part->p_memsz = size;
}

/* Describes the memory and where the notes are: the CPUs' registers, and VMCOREINFO. */
static void write_headers(void)
{
	Elf64_Ehdr *header = (Elf64_Ehdr *)small.headers;
	uint64_t place, size, other, offset = page_offset();
	char path[80];

	memcpy(header->e_ident, ELFMAG, SELFMAG);
	header->e_ident[EI_CLASS] = ELFCLASS64;
	header->e_ident[EI_DATA] = ELFDATA2LSB;
	header->e_ident[EI_VERSION] = header->e_version = EV_CURRENT;
	header->e_type = ET_CORE;
	header->e_machine = EM_X86_64;
	header->e_phoff = header->e_ehsize = sizeof(*header);
	header->e_phentsize = sizeof(Elf64_Phdr);
	for (int cpu = 0; cpu < 128; cpu++) {
		snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/crash_notes", cpu);
		if (read_numbers(path, "%lx", &place, &other) != 1)
			break;
		strcat(path, "_size");
		if (read_numbers(path, "%lu", &size, &other) == 1)
			add_note(header, place, size);
	}
	if (header->e_phnum == 0)
		fail(REFUSED, "the kernel does not tell where its CPUs leave their registers");
	if (read_numbers("/sys/kernel/vmcoreinfo", "%lx %lx", &place, &size) != 2)
		fail(REFUSED, "the kernel has no /sys/kernel/vmcoreinfo");
	add_note(header, place, size);
	for (int i = 0; i < ranges; i++) {
		Elf64_Phdr *part = (Elf64_Phdr *)(header + 1) + header->e_phnum;

		if (memory[i].end < memory[i].start)
			continue;
		header->e_phnum++;
		*part = (Elf64_Phdr){ .p_type = PT_LOAD, .p_flags = PF_R | PF_W | PF_X };
		part->p_offset = part->p_paddr = memory[i].start;
		part->p_vaddr = offset + memory[i].start;
		part->p_filesz = part->p_memsz = memory[i].end - memory[i].start + 1;
	}
}

static void put(size_t at, uint32_t value)
{
	memcpy(small.parameters + at, &value, sizeof(value));
}

static void add_e820(uint64_t start, uint64_t end, uint32_t kind)
{
	unsigned char *entry = small.parameters + E820_TABLE + 20 * small.parameters[E820_COUNT]++;
	uint64_t size = end - start;

	memcpy(entry, &start, 8);
	memcpy(entry + 8, &size, 8);
	memcpy(entry + 16, &kind, 4);
}

/* Fills in what the kernel finds at its start; `place` is where `small` will be. */
static void write_parameters(struct file kernel, struct segment initrd, uint64_t place, char *words)
{
	const uint64_t line = place + offsetof(struct small, command_line);
	const uint64_t headers = place + offsetof(struct small, headers);
	size_t end = SETUP_END + 1 + kernel.data[SETUP_END];
	int length;

	memcpy(small.parameters + SETUP, kernel.data + SETUP, end - SETUP);
	small.parameters[LOADER] = 0xff;
	put(RAMDISK, initrd.place);
	put(RAMDISK_SIZE, initrd.size);
	put(COMMAND_LINE, line);
	length = snprintf((char *)small.command_line, PAGE, "%s elfcorehdr=%#lx", words, headers);
	if (length >= PAGE)
		fail(1, "the command line is too long");
	add_e820(rounded(low.start, PAGE), (low.end + 1) & -PAGE, USABLE);
	add_e820(crash.start, place, USABLE);
	add_e820(place, crash.end + 1, RESERVED);
	for (int i = 0; i < ranges; i++)
		if (memory[i].end > memory[i].start)
			add_e820(memory[i].start, memory[i].end + 1, RESERVED);
}

/* movabs $parameters, %rsi; movabs $kernel, %rax; jmp *%rax: nothing else is asked of a loader
 * that comes with paging on and interrupts off. */
static void write_code(uint64_t kernel, uint64_t parameters)
{
	unsigned char *code = small.code;

	memcpy(code, "\x48\xbe", 2);
	memcpy(code + 2, &parameters, 8);
	memcpy(code + 10, "\x48\xb8", 2);
	memcpy(code + 12, &kernel, 8);
	memcpy(code + 20, "\xff\xe0", 2);
}

static struct segment kernel_segment(struct file file)
{
	struct segment segment;
	uint32_t room, alignment;
	size_t setup;

	if (file.size < PAGE || memcmp(file.data + 0x202, "HdrS", 4) != 0)
		fail(1, "the capture kernel is no bzImage");
	setup = ((file.data[SETUP] ? file.data[SETUP] : 4) + 1) * 512;
	memcpy(&room, file.data + INIT_SIZE, sizeof(room));
	memcpy(&alignment, file.data + ALIGNMENT, sizeof(alignment));
	segment.data = file.data + setup;
	segment.size = file.size - setup;
	segment.place = rounded(crash.start, alignment ? alignment : PAGE);
	segment.room = rounded(room > segment.size ? room : segment.size, PAGE);
	return segment;
}

int main(int count, char **arguments)
{
	struct segment segments[3];
	struct file kernel, initrd;
	uint64_t place;

	if (count != 4)
		fail(1, "usage: kexec KERNEL INITRD COMMAND_LINE");
	read_memory();
	kernel = read_file(arguments[1]);
	initrd = read_file(arguments[2]);
	segments[0] = kernel_segment(kernel);
	place = (crash.end + 1 - sizeof(small)) & -PAGE;
	segments[2] = (struct segment){ &small, sizeof(small), place, sizeof(small) };
	place = (place - initrd.size) & -PAGE;
	segments[1] = (struct segment){ initrd.data, initrd.size, place, rounded(initrd.size, PAGE) };
	if (segments[0].place + segments[0].room > place)
		fail(NO_RESERVATION, "too little memory is set aside: %lu MiB",
		     (crash.end + 1 - crash.start) >> 20);
	if (crash.end >> 32)
		fail(NO_RESERVATION, "the memory set aside is not below 4 GiB");
	place = segments[2].place;
	write_headers();
	write_parameters(kernel, segments[1], place, arguments[3]);
	write_code(segments[0].place + ENTRY_64, place + offsetof(struct small, parameters));
	if (syscall(SYS_kexec_load, place, 3, segments, ON_CRASH_X86_64) < 0)
		fail(REFUSED, "kexec_load: %s", strerror(errno));
	return 0;
}

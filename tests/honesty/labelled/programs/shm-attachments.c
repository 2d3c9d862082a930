/* Segments are attached, counted, removed and mapped anew. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

static void require(int holds, const char *what)
{
	if (!holds) {
		printf("WRONG %s (errno %d)\n", what, errno);
		exit(3);
	}
}

static int attached(int id)
{
	struct shmid_ds status;

	return shmctl(id, IPC_STAT, &status) ? -1 : (int)status.shm_nattch;
}

static int made(size_t size)
{
	int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);

	if (id < 0) {
		perror("shmget");
		exit(1);
	}
	return id;
}

/* The file of a removed segment must not be mapped again. */
static void remap_removed(size_t size, size_t page)
{
	int id = made(size);
	char *segment = shmat(id, NULL, 0);

	require(segment != (void *)-1, "attaching");
	require(!shmctl(id, IPC_RMID, NULL), "removing");
	if (page) {
		/* Another mapping of the same file, which begins with a later page. */
		require(!munmap(segment, page * 4096), "unmapping the first pages");
		segment += page * 4096;
		size -= page * 4096;
	}
	errno = 0;
	require(remap_file_pages(segment, size, 0, page, 0) == -1 && errno == EINVAL,
		"mapping a removed segment");
	require(attached(id) == -1, "a removed segment is still there");
}

int main(void)
{
	int id = made(8192);
	char *first = shmat(id, NULL, 0), *second;

	require(first != (void *)-1 && attached(id) == 1, "one attachment");
	first[0] = 'k';
	second = shmat(id, NULL, SHM_RDONLY);
	require(second != (void *)-1 && second[0] == 'k' && attached(id) == 2, "two attachments");
	require(!shmdt(second) && attached(id) == 1, "one attachment is left");
	require(!remap_file_pages(first, 8192, 0, 0, 0), "mapping a living segment anew");
	require(first[0] == 'k' && attached(id) == 1, "still attached after mapping anew");

	/* Removed, but attached: it may be attached once more, and vanishes with the last one. */
	require(!shmctl(id, IPC_RMID, NULL), "removing");
	second = shmat(id, NULL, 0);
	require(second != (void *)-1 && second[0] == 'k' && attached(id) == 2, "attaching when marked");
	require(!shmdt(second) && attached(id) == 1 && first[0] == 'k', "detaching when marked");
	require(!shmdt(first) && attached(id) == -1, "the last detachment frees the segment");

	remap_removed(4096, 0);
	remap_removed(8192, 0);
	remap_removed(8192, 1);
	return 0;
}

/*
 * remap_file_pages() unmaps the last attachment of a removed System V segment, which destroys the
 * segment, and then maps it again.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

int main(void)
{
	int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
	void *segment = id < 0 ? (void *)-1 : shmat(id, NULL, 0);

	if (segment == (void *)-1 || shmctl(id, IPC_RMID, NULL)) {
		perror("segment");
		return 1;
	}
	/* A fixed kernel refuses to map what is gone. */
	remap_file_pages(segment, 4096, 0, 0, 0);
	return 0;
}

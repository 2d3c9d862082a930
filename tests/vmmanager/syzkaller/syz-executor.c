/* Stands in for syz-executor: `crash()` crashes the kernel, other calls print themselves. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
	char line[4096];
	FILE *trigger;
	int i;

	while (fgets(line, sizeof(line), stdin)) {
		if (!strncmp(line, "crash()", 7)) {
			sleep(1);
			trigger = fopen("/proc/sysrq-trigger", "w");
			if (trigger && fputc('c', trigger) != EOF)
				fclose(trigger);
		} else if (line[0] != '#') {
			for (i = 1; i < count; i++)
				fprintf(stderr, "%s ", words[i]);
			fputs(line, stderr);
		}
	}
	sleep(1);
	return 0;
}

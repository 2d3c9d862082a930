int fork_one(int parent);
int watch_filter(int type);
int open_file(const char *name);
unsigned long length(const char *text);

#define ENTRY_VALUE 1

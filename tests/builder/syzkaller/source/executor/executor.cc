#include "defs.h"
int main() { return ENDING; }

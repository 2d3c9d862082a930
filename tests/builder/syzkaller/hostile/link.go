package main

import "os"

func main() {
	os.Symlink("/etc/passwd", "/out/PLACE")
	os.WriteFile("executor/defs.h", []byte("#define ENDING 7\n"), 0644)
}

module github.com/google/syzkaller

go 1.14

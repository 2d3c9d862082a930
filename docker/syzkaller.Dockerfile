# syz-execprog and syz-executor of one commit of syzkaller, static, and nothing else: an image to
# take files from, by docker/syzkaller.sh. The compilers have to be of the commit's age, more or less.

ARG GO_IMAGE=golang:1.24-bookworm
FROM ${GO_IMAGE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*
# Commits that are older than Go's modules are built in this place only.
WORKDIR /go/src/github.com/google/syzkaller
ARG REPOSITORY=https://github.com/google/syzkaller.git
ARG COMMIT
RUN git init --quiet \
    && git fetch --quiet --depth 1 "$REPOSITORY" "$COMMIT" \
    && git checkout --quiet FETCH_HEAD
ENV GOPATH=/go GO111MODULE=auto GOTOOLCHAIN=auto CGO_ENABLED=0
RUN make execprog
# The guest has no libraries. Some commits do not ask for a static executor, and all of them fail
# for warnings that a newer compiler has.
RUN static() { ! ldd "$(find bin -name syz-executor)" 2>&1 | grep '=>'; }; \
    make executor && static \
    || { make executor CFLAGS='-O2 -pthread -static -w' && static; }
RUN mkdir /out && find bin -name syz-execprog -o -name syz-executor | xargs -I '{}' cp '{}' /out

FROM scratch
COPY --from=build /out /

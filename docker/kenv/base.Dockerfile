# Live-kBench's kEnv as an image: an agent finds /linux, /root/task.txt and /KBDr/run_kernel. The tree
# is mounted (`kgym bug source`), or cloned from /KBDr/mirror; the door is `kgym bench door`.
#   docker build -f docker/kenv/base.Dockerfile -t kgym-kenv:latest .
FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential ca-certificates git \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*' \
    && git config --system user.name agent && git config --system user.email agent@localhost
COPY services/kgym_benchmark/kenv/inside/programs.py /KBDr/start
RUN cp /KBDr/start /KBDr/initialize && cp /KBDr/start /KBDr/run_kernel \
    && chmod 755 /KBDr/* && mkdir -p /KBDr/output /linux
ENV KENV_COMMIT_FROM=parent KENV_STATEFUL_EDIT=false
WORKDIR /linux
ENTRYPOINT ["/KBDr/start"]
CMD ["bash"]

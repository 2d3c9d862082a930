#!/bin/sh
# One worker of kGymSuite: a task of the job array that `kgym slurm up` submits. It needs no root and no
# Docker. docs/many-machines.md says what workers.env holds; change the lines below as your cluster needs.
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@1800
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=kgym-%A_%a.log
set -eu
umask 077
set -a
. "${KGYM_WORKERS:-$HOME/.config/kgym/workers.env}"
set +a

# On the node's own disk, where later workers of this user find the caches again.
scratch=${KGYM_SCRATCH:-/tmp/kgym-$(id -u)}
mkdir -p "$scratch"
if [ -L "$scratch" ] || [ ! -O "$scratch" ]; then
    echo "$scratch belongs to another user: name another folder in KGYM_SCRATCH" >&2
    exit 1
fi
export KGYM_DATA="$scratch"

kgym worker &
worker=$!
# Before the time limit, Slurm sends SIGTERM to this shell alone: the worker finishes its steps and takes no
# more. At the limit, and when the task is cancelled or requeued, the worker gets SIGTERM, too, and returns
# its steps at once.
hand_back() { kill -TERM "$worker" 2>/dev/null || true; }
drain() {
    trap hand_back TERM
    kill -USR1 "$worker" 2>/dev/null || true
}
trap drain TERM
status=0
while kill -0 "$worker" 2>/dev/null; do # a signal ends `wait` early
    wait "$worker" && status=0 || status=$?
done
exit "$status"

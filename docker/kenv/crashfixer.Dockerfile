# CrashFixer needs no tree of its own: it reads the kernel's source, and tries patches, at KGYM_SERVER.
#   docker build --target agent -t kgym-agent -f docker/Dockerfile .
#   docker build -f docker/kenv/crashfixer.Dockerfile -t kgym-kenv-crashfixer .
FROM kgym-agent
ENV KENV_STRATEGY=forest
ENTRYPOINT ["sh", "-c", "kgym fix \"$KENV_SYZBOT_BUG_ID\" --strategy \"$KENV_STRATEGY\" --model \"$KENV_MODEL\" --out /KBDr/output/patch.txt --json >/KBDr/output/traj.json 2>/KBDr/output/log.txt"]

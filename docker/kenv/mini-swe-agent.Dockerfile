#   docker build -f docker/kenv/mini-swe-agent.Dockerfile -t kgym-kenv-mini-swe-agent .
FROM kgym-kenv:latest
RUN pip install --no-cache-dir mini-swe-agent==2.4.6
ENV MSWEA_CONFIGURED=1 MSWEA_SILENT_STARTUP=1
CMD ["sh", "-c", "mini -y --exit-immediately -m \"$KENV_MODEL\" -t \"$(cat /root/task.txt)\" -o /KBDr/output/traj.json"]

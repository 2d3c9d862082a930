#   docker build -f docker/kenv/mini-swe-agent.Dockerfile -t kgym-kenv-mini-swe-agent .
FROM kgym-kenv:latest
RUN pip install --no-cache-dir mini-swe-agent==2.4.6
ENV MSWEA_CONFIGURED=1 MSWEA_SILENT_STARTUP=1 MSWEA_COST_TRACKING=ignore_errors
CMD ["sh", "-c", "mini -y --exit-immediately -m \"$KENV_MODEL\" -c mini.yaml -c environment.timeout=900 -t \"$(cat /root/task.txt /root/instructions.txt)\" -o /KBDr/output/traj.json"]

#   docker build -f docker/kenv/openhands.Dockerfile -t kgym-kenv-openhands .
FROM kgym-kenv:latest
RUN pip install --no-cache-dir openhands-ai==0.62.0
ENV RUNTIME=local SAVE_TRAJECTORY_PATH=/KBDr/output/traj.json
CMD ["sh", "-c", "cat /root/task.txt /root/instructions.txt >/tmp/task.txt; SANDBOX_TIMEOUT=900 LLM_MODEL=\"$KENV_MODEL\" python3 -m openhands.core.main -f /tmp/task.txt -d /linux"]

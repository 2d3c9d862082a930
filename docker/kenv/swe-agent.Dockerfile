#   docker build -f docker/kenv/swe-agent.Dockerfile -t kgym-kenv-swe-agent .
FROM kgym-kenv:latest
RUN git clone -q --depth 1 --branch v1.1.0 https://github.com/SWE-agent/SWE-agent.git /opt/swe-agent \
    && pip install --no-cache-dir /opt/swe-agent
ENV SWE_AGENT_CONFIG_DIR=/opt/swe-agent/config SWE_AGENT_TOOLS_DIR=/opt/swe-agent/tools \
    SWE_AGENT_TRAJECTORY_DIR=/root/swe-agent
CMD ["sh", "-c", "sweagent run --agent.model.name \"$KENV_MODEL\" --agent.tools.execution_timeout=900 --agent.model.per_instance_cost_limit=0 --agent.model.total_cost_limit=0 --env.deployment.type=local --env.repo.type=preexisting --env.repo.repo_name=linux --env.repo.reset=false --problem_statement.type=text --problem_statement.id=bug --problem_statement.text=\"$(cat /root/task.txt /root/instructions.txt)\" --output_dir=/root/swe-agent; cp /root/swe-agent/bug/bug.traj /KBDr/output/traj.json"]

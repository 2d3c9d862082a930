-- What makes rows of all tables (many_jobs.py): SQLite and PostgreSQL both understand it.
CREATE TEMP TABLE seed (
    n INTEGER PRIMARY KEY, state TEXT, verdict TEXT, outcome TEXT, title TEXT, bug TEXT,
    night TEXT, model TEXT, submitter TEXT, group_name TEXT, shape TEXT,
    created_at {time}, started_at {time}, ended_at {time}, failure TEXT);

INSERT INTO jobs (id, state, priority, submitter, group_name, outcome, verdict, title, reason,
    created_at, updated_at, tags)
SELECT n, state, 0, submitter, group_name, outcome, verdict, title,
    CASE WHEN verdict IS NULL THEN NULL ELSE '2 of 2 completed instances said so' END, created_at,
    coalesce(ended_at, created_at),
    '["bug=' || bug || '", "night:' || night || '", "model:' || model || '"]'
FROM seed;

-- Of a job that has not ended or failed, the last step is the one that has not succeeded.
INSERT INTO steps (job_id, number, kind, lane, rank, turn, state, attempt, tries, lease,
    lease_until, worker, not_before, queued_at, started_at, finished_at, failure, result, artifacts,
    spec)
SELECT n, shape.number, shape.kind, lanes.id, 0, n, CASE WHEN shape.number < {last} THEN 'succeeded'
        ELSE seed.state END,
    CASE WHEN shape.number = {last} AND seed.state IN ('queued', 'pending') THEN 0 ELSE 1 END, 0,
    CASE WHEN shape.number = {last} AND seed.state = 'running' THEN {uuid} END,
    CASE WHEN shape.number = {last} AND seed.state = 'running' THEN {later} END,
    CASE WHEN shape.number = {last} AND seed.state = 'queued' THEN NULL
        ELSE 'host-' || (n % 12) || '/' || shape.kind END,
    CASE WHEN seed.state = 'queued' THEN {later} ELSE created_at END, created_at,
    CASE WHEN shape.number = {last} AND seed.state = 'queued' THEN NULL ELSE started_at END,
    CASE WHEN shape.number < {last} THEN coalesce(ended_at, started_at) ELSE ended_at END,
    CASE WHEN shape.number = {last} THEN failure END,
    CASE WHEN shape.number < {last} OR seed.state = 'succeeded' THEN result.text END,
    CASE WHEN shape.number < {last} OR seed.state = 'succeeded' THEN result.artifacts ELSE '[]' END,
    result.spec
FROM seed JOIN shapes AS shape ON shape.name = seed.shape
    JOIN lanes ON lanes.kind = shape.kind AND lanes.needs = '{needs}'
    JOIN results AS result ON result.kind = shape.kind
        AND result.verdict = CASE WHEN shape.kind = 'reproduce' AND shape.number = {last}
            THEN coalesce(seed.verdict, 'same_crash') WHEN shape.kind = 'reproduce'
            THEN 'same_crash' ELSE '' END
ORDER BY n, shape.number;

INSERT INTO attempts (lease, step_id, number, kind, worker, started_at, ended_at, outcome, cause,
    reason, cached)
SELECT coalesce(steps.lease, {uuid}), steps.id, 1, steps.kind, steps.worker, steps.started_at,
    steps.finished_at, CASE steps.state WHEN 'running' THEN NULL ELSE steps.state END,
    CASE WHEN steps.state <> 'failed' THEN NULL WHEN steps.id % 5 = 0 THEN 'infrastructure'
        ELSE 'user' END,
    CASE WHEN steps.state <> 'failed' THEN NULL WHEN steps.id % 5 = 0 THEN 'vm_lost'
        WHEN steps.id % 2 = 0 THEN 'patch_failed' ELSE 'does_not_compile' END,
    CASE WHEN steps.kind = 'build' AND steps.state = 'succeeded' THEN steps.id % 10 <> 0 END
FROM steps WHERE steps.attempt = 1;

INSERT INTO facets (job_id, facet, state, created_at, outcome, moved_at)
SELECT n, facet, state, created_at, outcome, coalesce(ended_at, created_at) FROM (
    SELECT DISTINCT n, 'kind:' || shapes.kind AS facet
        FROM seed JOIN shapes ON shapes.name = seed.shape
    UNION ALL SELECT n, 'tag:bug=' || bug FROM seed
    UNION ALL SELECT n, 'tag:night:' || night FROM seed
    UNION ALL SELECT n, 'tag:model:' || model FROM seed
    UNION ALL SELECT n, 'group:' || group_name FROM seed WHERE group_name IS NOT NULL
    UNION ALL SELECT n, 'entry:tree-' || (n % 50) FROM seed WHERE verdict IS NOT NULL
) AS facets_of JOIN seed USING (n);

INSERT INTO groups (submitter, name, created_at)
SELECT submitter, group_name, min(created_at) FROM seed WHERE group_name IS NOT NULL
GROUP BY submitter, group_name ORDER BY 3;

INSERT INTO events (job_id, step, attempt, kind, at, data)
SELECT job_id, number, 1, 'state', coalesce(finished_at, started_at),
    '{"attempt": 1, "state": "' || state || '", "job_state": "' || state || '"}'
FROM steps WHERE attempt = 1 ORDER BY steps.id;

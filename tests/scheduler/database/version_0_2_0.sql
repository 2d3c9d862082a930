-- What migrations change of the tables of version 0.2.0, with jobs of every kind; SQLite and
-- PostgreSQL both understand it.
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL);
INSERT INTO alembic_version VALUES ('0.2.0');

CREATE TABLE jobs (
    id INTEGER NOT NULL,
    state VARCHAR(16) NOT NULL,
    priority SMALLINT NOT NULL,
    created_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL,
    idempotency_key VARCHAR(200),
    body_hash VARCHAR(64),
    tags TEXT NOT NULL,
    submitter VARCHAR(100) DEFAULT 'local' NOT NULL,
    group_name VARCHAR(100),
    verdict VARCHAR(16),
    resolved BOOLEAN,
    title TEXT,
    reason TEXT,
    crash TEXT,
    guilty_file TEXT,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT uq_jobs_submitter_idempotency_key UNIQUE (submitter, idempotency_key)
);
CREATE INDEX ix_jobs_submitter ON jobs (submitter, created_at, id);
CREATE INDEX ix_jobs_unfinished ON jobs (submitter) WHERE state IN ('pending', 'queued', 'running');
CREATE INDEX ix_jobs_verdict ON jobs (verdict, created_at, id) WHERE verdict IS NOT NULL;
CREATE INDEX ix_jobs_created_at_id ON jobs (created_at, id);
CREATE INDEX ix_jobs_group ON jobs (submitter, group_name, id) WHERE group_name IS NOT NULL;
CREATE INDEX ix_jobs_group_counts ON jobs (submitter, group_name, state, verdict, resolved, updated_at)
    WHERE group_name IS NOT NULL;
CREATE INDEX ix_jobs_state_created_at_id ON jobs (state, created_at, id);

CREATE TABLE facets (
    job_id INTEGER NOT NULL,
    facet VARCHAR(120) NOT NULL,
    state VARCHAR(16) NOT NULL,
    created_at TIMESTAMP NOT NULL,
    verdict VARCHAR(16),
    resolved BOOLEAN,
    moved_at TIMESTAMP,
    CONSTRAINT pk_facets PRIMARY KEY (job_id, facet),
    CONSTRAINT fk_facets_job_id FOREIGN KEY (job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_facets_bugs ON facets (facet, state, verdict, resolved, moved_at, created_at, job_id)
    WHERE substr(facet, 1, 8) = 'tag:bug=';
CREATE INDEX ix_facets_entries ON facets (facet, state, verdict, resolved, moved_at, created_at, job_id)
    WHERE substr(facet, 1, 6) = 'entry:';
CREATE INDEX ix_facets_facet_state_created_at_job_id ON facets (facet, state, created_at, job_id);
CREATE INDEX ix_facets_facet_created_at_job_id ON facets (facet, created_at, job_id);

CREATE TABLE steps (
    job_id INTEGER NOT NULL,
    name VARCHAR(60),
    state VARCHAR(16) NOT NULL,
    failure TEXT
);

INSERT INTO jobs (id, state, priority, created_at, updated_at, tags, verdict, resolved, reason) VALUES
    (1, 'queued', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, NULL),
    (2, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', 'no_crash', true, 'it was quiet'),
    (3, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', 'no_crash', false, 'flags_weaker: no KASAN'),
    (4, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', 'inconclusive', false, 'lost'),
    (5, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', 'same_crash', NULL, 'it crashed'),
    (6, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', 'other_crash', NULL, 'it crashed'),
    (7, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, '3 of 3 patches compile'),
    (8, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, '1 of 3 patches compile'),
    (9, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, NULL),
    (10, 'aborted', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, 'the job is aborted'),
    (11, 'failed', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, 'step 2 (build) failed: x'),
    (12, 'failed', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, 'step 0 (build) failed: x'),
    (13, 'failed', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, 'step 0 (build) failed: x'),
    (14, 'failed', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL, 'step 0 (build) failed: x'),
    (15, 'succeeded', 0, '2026-01-01', '2026-01-01', '[]', NULL, NULL,
        'no verdict, as its results cannot be read: x');
INSERT INTO steps VALUES
    (11, 'build_after', 'failed', '{"cause":"user","reason":"does_not_compile","message":"x","details":{}}'),
    (12, 'build_before', 'failed', '{"cause":"user","reason":"does_not_compile","message":"x","details":{}}'),
    (13, NULL, 'failed', '{"cause":"user","reason":"patch_does_not_apply","message":"x","details":{}}'),
    (14, NULL, 'failed', '{"cause":"infrastructure","reason":"disk_full","message":"x","details":{}}');
INSERT INTO facets VALUES
    (2, 'tag:bug=a', 'succeeded', '2026-01-01', 'no_crash', true, '2026-01-01'),
    (1, 'tag:bug=a', 'queued', '2026-01-01', NULL, NULL, NULL);

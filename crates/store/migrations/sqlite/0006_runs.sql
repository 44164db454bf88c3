ALTER TABLE kb.agent_runs ADD COLUMN conversation_id TEXT;

CREATE INDEX kb.agent_runs_by_project ON agent_runs (project_id, id) WHERE project_id IS NOT NULL;

CREATE INDEX kb.agent_runs_running ON agent_runs (started_at) WHERE status = 'running';

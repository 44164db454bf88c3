ALTER TABLE kb.agent_runs ADD COLUMN conversation_id TEXT COLLATE "C";

CREATE INDEX agent_runs_by_project ON kb.agent_runs (project_id, id) WHERE project_id IS NOT NULL;

CREATE INDEX agent_runs_running ON kb.agent_runs (started_at) WHERE status = 'running';

-- The gateway's process that has opened what is open. A file has one, which says nothing here.
ALTER TABLE kb.toolwharf_replicas ADD COLUMN process TEXT;

ALTER TABLE kb.agent_run_tool_calls ADD COLUMN process TEXT;

ALTER TABLE kb.agent_runs ADD COLUMN process TEXT;

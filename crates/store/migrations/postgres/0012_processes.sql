-- The gateway's process that has opened what is open: when its replica is lost, it will not be closed by it.
ALTER TABLE kb.toolwharf_replicas ADD COLUMN process TEXT COLLATE "C";

ALTER TABLE kb.agent_run_tool_calls ADD COLUMN process TEXT COLLATE "C";

ALTER TABLE kb.agent_runs ADD COLUMN process TEXT COLLATE "C";

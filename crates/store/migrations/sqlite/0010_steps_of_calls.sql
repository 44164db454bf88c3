-- How far a call got, and when: microseconds since it began.
ALTER TABLE kb.agent_run_tool_calls ADD COLUMN turn_us INTEGER;

ALTER TABLE kb.agent_run_tool_calls ADD COLUMN sent_us INTEGER;

ALTER TABLE kb.agent_run_tool_calls ADD COLUMN answered_us INTEGER;

ALTER TABLE kb.agent_run_tool_calls ADD COLUMN questions INTEGER;

-- The call that this one was made again from.
ALTER TABLE kb.agent_run_tool_calls ADD COLUMN replay_of TEXT;

CREATE INDEX kb.agent_run_tool_calls_replays ON agent_run_tool_calls (replay_of, id) WHERE replay_of IS NOT NULL;

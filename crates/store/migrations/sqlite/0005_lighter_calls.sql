-- Each index of this table is a page more that every call waits for. A server's or a tool's calls are found by going
-- through the newest; a call that belongs to no project has no place in an index of projects.
DROP INDEX kb.agent_run_tool_calls_by_tool;

DROP INDEX kb.agent_run_tool_calls_by_project;

CREATE INDEX kb.agent_run_tool_calls_by_project ON agent_run_tool_calls (project_id, id) WHERE project_id IS NOT NULL;

-- A call that belongs to no project has no place in an index of projects.
DROP INDEX kb.agent_run_tool_calls_by_project;

CREATE INDEX agent_run_tool_calls_by_project ON kb.agent_run_tool_calls (project_id, id) WHERE project_id IS NOT NULL;

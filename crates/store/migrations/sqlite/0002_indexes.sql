CREATE INDEX kb.project_mcp_servers_by_product ON project_mcp_servers (product_id) WHERE product_id IS NOT NULL;

CREATE INDEX kb.agent_workspaces_by_project ON agent_workspaces (project_id) WHERE project_id IS NOT NULL;

CREATE INDEX kb.api_keys_by_project ON api_keys (project_id, id);

CREATE INDEX kb.agent_run_tool_calls_by_project ON agent_run_tool_calls (project_id, id);

CREATE INDEX kb.agent_run_tool_calls_by_tool ON agent_run_tool_calls (server, tool, id);

CREATE INDEX kb.agent_run_tool_calls_by_run ON agent_run_tool_calls (run_id, id) WHERE run_id IS NOT NULL;

CREATE INDEX kb.agent_run_tool_calls_open ON agent_run_tool_calls (started_at) WHERE status = 'open';

CREATE INDEX kb.server_events_by_server ON server_events (server, id);

CREATE INDEX kb.server_events_by_project ON server_events (project_id, id);

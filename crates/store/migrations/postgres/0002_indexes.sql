CREATE INDEX project_mcp_servers_by_product ON kb.project_mcp_servers (product_id) WHERE product_id IS NOT NULL;

CREATE INDEX agent_workspaces_by_project ON kb.agent_workspaces (project_id) WHERE project_id IS NOT NULL;

CREATE INDEX api_keys_by_project ON kb.api_keys (project_id, id);

CREATE INDEX agent_run_tool_calls_by_project ON kb.agent_run_tool_calls (project_id, id);

CREATE INDEX agent_run_tool_calls_by_tool ON kb.agent_run_tool_calls (server, tool, id);

CREATE INDEX agent_run_tool_calls_by_run ON kb.agent_run_tool_calls (run_id, id) WHERE run_id IS NOT NULL;

CREATE INDEX agent_run_tool_calls_open ON kb.agent_run_tool_calls (started_at) WHERE status = 'open';

CREATE INDEX server_events_by_server ON kb.server_events (server, id);

CREATE INDEX server_events_by_project ON kb.server_events (project_id, id);

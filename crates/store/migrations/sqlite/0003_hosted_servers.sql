CREATE UNIQUE INDEX kb.agent_workspaces_by_name ON agent_workspaces (COALESCE(project_id, ''), name)
    WHERE container_type = 'mcp_server';

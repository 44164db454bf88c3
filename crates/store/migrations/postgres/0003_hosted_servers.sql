CREATE UNIQUE INDEX agent_workspaces_by_name ON kb.agent_workspaces (COALESCE(project_id, ''), name)
    WHERE container_type = 'mcp_server';

CREATE TABLE kb.projects (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    enabled INTEGER NOT NULL,
    settings TEXT NOT NULL CHECK (json_valid(settings)),
    data_key BLOB,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;

CREATE TABLE kb.products (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    manifest TEXT NOT NULL CHECK (json_valid(manifest)),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    UNIQUE (project_id, name)
) STRICT;

CREATE TABLE kb.project_mcp_servers (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    product_id TEXT REFERENCES products (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    transport TEXT NOT NULL CHECK (transport IN ('stdio', 'sse', 'http')),
    config TEXT NOT NULL CHECK (json_valid(config)),
    enabled INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    UNIQUE (project_id, name)
) STRICT;

CREATE TABLE kb.agent_workspaces (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT REFERENCES projects (id) ON DELETE SET NULL,
    name TEXT NOT NULL,
    container_type TEXT NOT NULL,
    status TEXT NOT NULL,
    image TEXT NOT NULL,
    config TEXT NOT NULL CHECK (json_valid(config)),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;

CREATE TABLE kb.secrets (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    sealed BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (project_id, name)
) STRICT;

CREATE TABLE kb.tool_settings (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    enabled INTEGER,
    alias TEXT,
    description TEXT,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (project_id, server, tool)
) STRICT;

CREATE TABLE kb.tool_pins (
    project_id TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    digest TEXT NOT NULL,
    definition TEXT NOT NULL,
    pending_digest TEXT,
    pending_definition TEXT,
    first_seen_at TEXT NOT NULL,
    changed_at TEXT,
    PRIMARY KEY (project_id, server, tool)
) STRICT;

CREATE TABLE kb.catalog_snapshots (
    project_id TEXT NOT NULL,
    server TEXT NOT NULL,
    config_digest TEXT NOT NULL,
    catalog TEXT NOT NULL,
    taken_at TEXT NOT NULL,
    PRIMARY KEY (project_id, server)
) STRICT;

CREATE TABLE kb.agent_runs (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    status TEXT NOT NULL,
    turns INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_micros INTEGER NOT NULL,
    error TEXT,
    started_at TEXT NOT NULL,
    finished_at TEXT
) STRICT;

CREATE TABLE kb.agent_run_tool_calls (
    id TEXT NOT NULL PRIMARY KEY,
    run_id TEXT REFERENCES agent_runs (id),
    project_id TEXT,
    caller TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    arguments_digest TEXT NOT NULL,
    arguments TEXT,
    status TEXT NOT NULL CHECK (
        status IN ('open', 'ok', 'tool_error', 'error', 'timeout', 'cancelled', 'unknown')
    ),
    error TEXT,
    result_digest TEXT,
    result TEXT,
    started_at TEXT NOT NULL,
    finished_at TEXT,
    duration_us INTEGER
) STRICT;

CREATE TABLE kb.server_events (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT,
    server TEXT NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL CHECK (json_valid(detail)),
    at TEXT NOT NULL
) STRICT;

CREATE TABLE kb.api_keys (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('admin', 'manage', 'call', 'read')),
    hash TEXT NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    created_at TEXT NOT NULL,
    last_used_at TEXT,
    expires_at TEXT,
    revoked_at TEXT,
    CHECK ((role = 'admin') = (project_id IS NULL))
) STRICT;

CREATE TABLE kb.master_key (
    -- One row at most.
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    key_id TEXT NOT NULL,
    sealed_check BLOB NOT NULL,
    rotated_at TEXT NOT NULL
) STRICT;

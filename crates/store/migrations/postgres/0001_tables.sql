CREATE TABLE kb.projects (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL,
    description TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    settings JSONB NOT NULL,
    data_key BYTEA,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE kb.products (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C" NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    version TEXT NOT NULL,
    manifest JSONB NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE kb.project_mcp_servers (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C" NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    product_id TEXT COLLATE "C" REFERENCES kb.products (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    description TEXT NOT NULL,
    transport TEXT NOT NULL CHECK (transport IN ('stdio', 'sse', 'http')),
    config JSONB NOT NULL,
    enabled BOOLEAN NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE kb.agent_workspaces (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C" REFERENCES kb.projects (id) ON DELETE SET NULL,
    name TEXT COLLATE "C" NOT NULL,
    container_type TEXT NOT NULL,
    status TEXT NOT NULL,
    image TEXT NOT NULL,
    config JSONB NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE kb.secrets (
    project_id TEXT COLLATE "C" NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    version INTEGER NOT NULL,
    nonce BYTEA NOT NULL,
    sealed BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, name)
);

CREATE TABLE kb.tool_settings (
    project_id TEXT COLLATE "C" NOT NULL REFERENCES kb.projects (id) ON DELETE CASCADE,
    server TEXT COLLATE "C" NOT NULL,
    tool TEXT COLLATE "C" NOT NULL,
    enabled BOOLEAN,
    alias TEXT,
    description TEXT,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, server, tool)
);

CREATE TABLE kb.tool_pins (
    project_id TEXT COLLATE "C" NOT NULL,
    server TEXT COLLATE "C" NOT NULL,
    tool TEXT COLLATE "C" NOT NULL,
    digest TEXT NOT NULL,
    definition TEXT NOT NULL,
    pending_digest TEXT,
    pending_definition TEXT,
    first_seen_at TIMESTAMPTZ NOT NULL,
    changed_at TIMESTAMPTZ,
    PRIMARY KEY (project_id, server, tool)
);

CREATE TABLE kb.catalog_snapshots (
    project_id TEXT COLLATE "C" NOT NULL,
    server TEXT COLLATE "C" NOT NULL,
    config_digest TEXT NOT NULL,
    catalog TEXT NOT NULL,
    taken_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, server)
);

CREATE TABLE kb.agent_runs (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C",
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    status TEXT NOT NULL,
    turns INTEGER NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_micros BIGINT NOT NULL,
    error TEXT,
    started_at TIMESTAMPTZ NOT NULL,
    finished_at TIMESTAMPTZ
);

CREATE TABLE kb.agent_run_tool_calls (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    run_id TEXT COLLATE "C" REFERENCES kb.agent_runs (id),
    project_id TEXT COLLATE "C",
    caller TEXT NOT NULL,
    server TEXT COLLATE "C" NOT NULL,
    tool TEXT COLLATE "C" NOT NULL,
    arguments_digest TEXT NOT NULL,
    arguments TEXT,
    status TEXT NOT NULL CHECK (
        status IN ('open', 'ok', 'tool_error', 'error', 'timeout', 'cancelled', 'unknown')
    ),
    error TEXT,
    result_digest TEXT,
    result TEXT,
    started_at TIMESTAMPTZ NOT NULL,
    finished_at TIMESTAMPTZ,
    duration_us BIGINT
);

CREATE TABLE kb.server_events (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C",
    server TEXT COLLATE "C" NOT NULL,
    kind TEXT NOT NULL,
    detail JSONB NOT NULL,
    at TIMESTAMPTZ NOT NULL
);

CREATE TABLE kb.api_keys (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C" REFERENCES kb.projects (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('admin', 'manage', 'call', 'read')),
    hash TEXT NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    last_used_at TIMESTAMPTZ,
    expires_at TIMESTAMPTZ,
    revoked_at TIMESTAMPTZ,
    CHECK ((role = 'admin') = (project_id IS NULL))
);

CREATE TABLE kb.master_key (
    -- One row at most.
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    key_id TEXT NOT NULL,
    sealed_check BYTEA NOT NULL,
    rotated_at TIMESTAMPTZ NOT NULL
);

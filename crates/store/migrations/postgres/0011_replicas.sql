-- The gateways that run on this database. Times are the database's: clocks of machines may differ.
CREATE TABLE kb.toolwharf_replicas (
    -- Of one membership: a gateway that was taken for lost comes back under another.
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    -- Where the other replicas reach it.
    address TEXT,
    started_at TIMESTAMPTZ NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);

-- What only one replica may do, held as long as its row above is there.
CREATE TABLE kb.toolwharf_leases (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    holder TEXT COLLATE "C" NOT NULL REFERENCES kb.toolwharf_replicas (id) ON DELETE CASCADE,
    fence BIGINT NOT NULL,
    since TIMESTAMPTZ NOT NULL
);

CREATE INDEX toolwharf_leases_by_holder ON kb.toolwharf_leases (holder);

-- Each time that a lease is taken it gets a higher number than any lease before.
CREATE SEQUENCE kb.toolwharf_fences;

-- What was changed, by topic: a row for each change, in the transaction that made it. Rows take no lock of one another, as a counter would.
CREATE TABLE kb.toolwharf_changes (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic TEXT COLLATE "C" NOT NULL,
    at TIMESTAMPTZ NOT NULL
);

CREATE FUNCTION kb.toolwharf_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kb.toolwharf_changes (topic, at) VALUES (TG_ARGV[0], clock_timestamp());
    PERFORM pg_notify('toolwharf_changes', TG_ARGV[0]);
    RETURN NULL;
END
$$;

CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE OF revoked_at, expires_at, role, hash ON kb.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('keys');
CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE OF name, description, enabled, settings ON kb.projects
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('projects');
CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE ON kb.project_mcp_servers
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('projects');
CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE ON kb.secrets
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('projects');
CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE ON kb.tool_settings
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('projects');
CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE OF image, config ON kb.agent_workspaces
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('servers');

-- Secrets of the servers in the configuration file, encrypted.
CREATE TABLE kb.toolwharf_secrets (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    nonce BYTEA NOT NULL,
    sealed BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);

CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE ON kb.toolwharf_secrets
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('secrets');

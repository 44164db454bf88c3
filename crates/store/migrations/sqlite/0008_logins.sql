-- Wraps nothing yet: NULL until the first sign-in is kept.
ALTER TABLE kb.master_key ADD COLUMN login_key BLOB;

-- Sign-ins of callers to servers that others run.
CREATE TABLE kb.logins (
    -- Empty: the server is one of the configuration file.
    project_id TEXT NOT NULL,
    server TEXT NOT NULL,
    -- Empty: it is everybody's.
    principal TEXT NOT NULL,
    version INTEGER NOT NULL,
    issuer TEXT NOT NULL,
    -- Why somebody has to sign in again; NULL: nobody has.
    needs_login TEXT,
    nonce BLOB NOT NULL,
    sealed BLOB NOT NULL,
    expires_at TEXT,
    -- Until then somebody renews it.
    leased_until TEXT,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (project_id, server, principal)
) STRICT;

-- What issuers know us as.
CREATE TABLE kb.login_clients (
    issuer TEXT NOT NULL,
    redirect_uri TEXT NOT NULL,
    nonce BLOB NOT NULL,
    sealed BLOB NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (issuer, redirect_uri)
) STRICT;

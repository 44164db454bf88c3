-- Wraps nothing yet: NULL until the first sign-in is kept.
ALTER TABLE kb.master_key ADD COLUMN login_key BYTEA;

-- Sign-ins of callers to servers that others run.
CREATE TABLE kb.logins (
    -- Empty: the server is one of the configuration file.
    project_id TEXT COLLATE "C" NOT NULL,
    server TEXT COLLATE "C" NOT NULL,
    -- Empty: it is everybody's.
    principal TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    issuer TEXT COLLATE "C" NOT NULL,
    -- Why somebody has to sign in again; NULL: nobody has.
    needs_login TEXT,
    nonce BYTEA NOT NULL,
    sealed BYTEA NOT NULL,
    expires_at TIMESTAMPTZ,
    -- Until then somebody renews it.
    leased_until TIMESTAMPTZ,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, server, principal)
);

-- What issuers know us as.
CREATE TABLE kb.login_clients (
    issuer TEXT COLLATE "C" NOT NULL,
    redirect_uri TEXT COLLATE "C" NOT NULL,
    nonce BYTEA NOT NULL,
    sealed BYTEA NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (issuer, redirect_uri)
);

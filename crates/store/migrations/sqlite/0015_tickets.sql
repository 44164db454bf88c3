-- What somebody holds for a while: the session of a browser, a link that is good once, a sign-in under way. Whoever holds it has the secret;
-- here is its digest, and, sealed, what it stands for.
CREATE TABLE kb.toolwharf_tickets (
    kind TEXT NOT NULL,
    digest TEXT NOT NULL,
    sealed TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    PRIMARY KEY (kind, digest)
) STRICT;

CREATE INDEX kb.toolwharf_tickets_by_end ON toolwharf_tickets (kind, expires_at);

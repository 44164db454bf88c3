-- What somebody holds for a while: the session of a browser, a link that is good once, a sign-in under way. Whoever holds it has the secret;
-- here is its digest, and, sealed, what it stands for.
CREATE TABLE kb.toolwharf_tickets (
    kind TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    sealed TEXT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (kind, digest)
);

CREATE INDEX toolwharf_tickets_by_end ON kb.toolwharf_tickets (kind, expires_at);

-- Replicas remember sessions that they have seen, and have to forget those that end before their time.
CREATE TRIGGER toolwharf_changed AFTER DELETE ON kb.toolwharf_tickets
    FOR EACH ROW WHEN (OLD.kind = 'session') EXECUTE FUNCTION kb.toolwharf_changed('sessions');

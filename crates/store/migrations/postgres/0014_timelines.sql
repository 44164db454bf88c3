-- Which history of this database goes on: another one after each failover and after each restore from a backup, and what was committed last
-- before that may be missing in it. Where Postgres does not say (it may be something like Postgres), any start of the server may be one.
CREATE FUNCTION kb.toolwharf_timeline() RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    RETURN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
EXCEPTION WHEN OTHERS THEN
    RETURN pg_postmaster_start_time()::TEXT;
END
$$;

-- Histories that replicas have noticed, and since when. Leases that were given at the end of the one before may be missing: nobody gets one
-- before they have run out. No lease was given before this table was there.
CREATE TABLE kb.toolwharf_timelines (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    since TIMESTAMPTZ NOT NULL
);

INSERT INTO kb.toolwharf_timelines (id, since) VALUES (kb.toolwharf_timeline(), '-infinity');

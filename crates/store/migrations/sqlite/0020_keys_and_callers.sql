-- A key may have several projects: `project_id` in `api_keys` is the first one, this table has the others. A version
-- that does not know the table thus never gives a key more than it has.
CREATE TABLE kb.toolwharf_key_projects (
    key_id TEXT NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    PRIMARY KEY (key_id, project_id)
) STRICT;

CREATE INDEX kb.toolwharf_key_projects_by_project ON toolwharf_key_projects (project_id);

-- Names become unique among the keys that are not revoked. Of several keys with one name, the newest keeps it, and the
-- others get the next free numbers: `ci (2)`, `ci (3)`.
CREATE INDEX kb.api_keys_by_name ON api_keys (name);

WITH RECURSIVE
    same AS (
        SELECT id, name, ROW_NUMBER() OVER (PARTITION BY name ORDER BY created_at DESC, id DESC) - 1 AS place
        FROM kb.api_keys
        WHERE revoked_at IS NULL
    ),
    numbers (name, number, place, most) AS (
        SELECT name, 1, 0, COUNT(*) - 1
        FROM kb.api_keys
        WHERE revoked_at IS NULL
        GROUP BY name
        HAVING COUNT(*) > 1
        UNION ALL
        SELECT n.name, n.number + 1, n.place + CASE WHEN EXISTS (
                SELECT 1 FROM kb.api_keys AS k
                WHERE k.name = n.name || ' (' || (n.number + 1) || ')' AND k.revoked_at IS NULL
            ) THEN 0 ELSE 1 END, n.most
        FROM numbers AS n
        WHERE n.place < n.most
    )
UPDATE kb.api_keys SET name = fresh.name
FROM (
    SELECT s.id, s.name || ' (' || MIN(n.number) || ')' AS name
    FROM same AS s JOIN numbers AS n ON n.name = s.name AND n.place = s.place
    WHERE s.place > 0
    GROUP BY s.id, s.name
) AS fresh
WHERE fresh.id = api_keys.id;

-- Usually empty. If the name was taken by a key that its creator may not see: the projects of the key.
ALTER TABLE kb.api_keys ADD COLUMN name_scope TEXT NOT NULL DEFAULT '';

CREATE UNIQUE INDEX kb.api_keys_names ON api_keys (name, name_scope) WHERE revoked_at IS NULL;

-- Who began the run, and who approved the definition. NULL: not known, because an earlier version wrote the row, or
-- because it was nobody.
ALTER TABLE kb.agent_runs ADD COLUMN caller TEXT;

ALTER TABLE kb.tool_changes ADD COLUMN caller TEXT;

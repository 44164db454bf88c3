-- A key that is not an administrator's may be for all projects.
ALTER TABLE kb.api_keys DROP CONSTRAINT api_keys_check;

ALTER TABLE kb.api_keys ADD CONSTRAINT api_keys_check CHECK (role <> 'admin' OR project_id IS NULL);

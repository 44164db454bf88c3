-- The tools in the lists of a key's clients. NULL: those of the project or of the gateway.
ALTER TABLE kb.api_keys ADD COLUMN tools TEXT COLLATE "C";

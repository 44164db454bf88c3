-- Which project was changed: a file has one gateway, which need not be told.
SELECT 1;

ALTER TABLE chats ADD COLUMN forked_from TEXT;
UPDATE chats SET forked_from = parent;
ALTER TABLE chats DROP COLUMN parent;
ALTER TABLE chats RENAME COLUMN forked_from TO parent;
